"""TLS with certificates of a test's authority: whom they name, and how they are renewed."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from cryptography import x509
from structlog.testing import capture_logs

from fanfold.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from fanfold.model.principal import Principal, Role
from fanfold.rpc.auth.certificates import Certificates
from fanfold.rpc.auth.doubts import NotBelieved
from fanfold.rpc.auth.guard import Bearer
from fanfold.rpc.auth.settings import CertificateRule
from fanfold.rpc.auth.tokens import create_token
from fanfold.rpc.channels import open_channel
from fanfold.rpc.credentials import Credentials, Tls
from fanfold.rpc.files import Watched
from fanfold.rpc.server import GrpcServer
from fanfold.rpc.tls import Renewal
from support.authority import Authority
from support.doors import Door, door
from unit.rpc.rpc_fakes import DESCRIBE, error_of, raw_unary

RULES = [
    {"match": "spiffe://mesh/coordinator/*", "principal": "coordinator-{}", "roles": ["coordinator"]},
    {"match": "CN=alice,O=People", "principal": "alice", "roles": ["caller"]},
    {"match": "CN=*", "principal": "{}", "roles": ["observer"]},
]


def mutual(authority: Authority, **more: Any) -> dict[str, Any]:
    """TLS settings with which clients must have a certificate."""
    pair = authority.pair("server")
    return {"certificate": pair.certificate, "key": pair.key, "client_ca": authority.file, **more}


def shown_by(at: Door, authority: Authority) -> int:
    """The serial number of the certificate that the server shows to a new connection."""
    host, _, port = at.address.partition(":")
    pem = ssl.get_server_certificate((host, int(port)), ca_certs=str(authority.file), timeout=10)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


@pytest.mark.contract("C40")
async def test_a_certificate_names_its_bearer_by_spiffe_id_or_subject(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    spiffe = authority.pair("c1", uris=("spiffe://mesh/coordinator/c1",))
    alice = authority.pair("alice", subject="CN=alice,O=People")
    async with door(auth={"certificates": RULES}, tls=mutual(authority)) as at:
        assert await at.knock(Credentials(tls=authority.tls(spiffe))) == Principal(
            "coordinator-c1", frozenset({Role.COORDINATOR})
        )
        assert await at.knock(Credentials(tls=authority.tls(alice))) == Principal("alice", frozenset({Role.CALLER}))


@pytest.mark.contract("C40")
@pytest.mark.parametrize(
    "named",
    [
        {"uris": ("spiffe://mesh/coordinator/a/b",)},
        {"uris": ("spiffe://mesh/coordinator/",)},
        {"uris": ("spiffe://mesh.evil/coordinator/c1",)},
        {"uris": ("spiffe://mesh/coordinator/c1", "spiffe://mesh/coordinator/c2")},
        {"uris": ("spiffe://other/x",), "subject": "CN=alice,O=People"},
        {"subject": "CN=alice,O=Others"},
        {"subject": "CN=not a principal"},
    ],
)
async def test_a_certificate_that_no_rule_knows_makes_nobody(tmp_path: Path, named: dict[str, Any]) -> None:
    authority = Authority(tmp_path)
    async with door(auth={"certificates": RULES}, tls=mutual(authority)) as at:
        refused = await error_of(at.knock(Credentials(tls=authority.tls(authority.pair("client", **named)))))
        assert isinstance(refused, Unauthenticated)
        assert at.let_in == []


@pytest.mark.contract("C41")
@pytest.mark.parametrize("pem", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_certificate_that_cannot_be_read_makes_nobody(pem: bytes) -> None:
    with pytest.raises(NotBelieved):
        Certificates([CertificateRule.model_validate(RULES[0])]).bearer_of({"x509_pem_cert": [pem]})


@pytest.mark.contract("C40")
async def test_certificates_of_others_expired_ones_and_none_make_no_connection(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    forged = other.pair("alice", subject="CN=alice,O=People")
    expired = authority.pair("expired", subject="CN=alice,O=People", lasts=timedelta(minutes=-1))
    async with door(auth={"certificates": RULES}, tls=mutual(authority)) as at:
        for pair in (forged, expired):
            assert isinstance(await error_of(at.knock(Credentials(tls=authority.tls(pair)))), Unavailable)
        assert isinstance(await error_of(at.knock(Credentials(tls=authority.tls()))), Unavailable)
        assert isinstance(await error_of(at.knock()), Unavailable)
        assert at.let_in == []


@pytest.mark.contract("C40")
async def test_a_certificate_that_expires_is_refused_over_a_connection_that_lasts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    alice = authority.pair("alice", subject="CN=alice,O=People", lasts=timedelta(seconds=3))
    async with (
        door(auth={"certificates": RULES}, tls=mutual(authority)) as at,
        open_channel(at.address, credentials=Credentials(tls=authority.tls(alice))) as channel,
    ):
        await raw_unary(channel, DESCRIBE)(b"")
        async with asyncio.timeout(20):
            while True:
                before = len(at.let_in)
                try:
                    await raw_unary(channel, DESCRIBE)(b"")
                except grpc.aio.AioRpcError:
                    break
                assert len(at.let_in) == before + 1
                await asyncio.sleep(0.1)
        assert isinstance(await error_of(raw_unary(channel, DESCRIBE)(b"")), Unauthenticated)


@pytest.mark.contract("C40")
async def test_tokens_and_certificates_can_both_make_known_and_a_token_goes_first(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, token = create_token(tmp_path / "tokens.yaml", "bob", frozenset({Role.CALLER}), None)
    alice = authority.pair("alice", subject="CN=alice,O=People")
    settings = {"certificates": RULES, "tokens": tmp_path / "tokens.yaml"}
    tls = mutual(authority, mutual_listen="127.0.0.1:0")
    async with door(auth=settings, tls=tls) as at:
        assert (await at.knock(Credentials(token=token, tls=authority.tls()))).name == "bob"
        assert isinstance(await error_of(at.knock(Credentials(tls=authority.tls()))), Unauthenticated)
        with_pair = authority.tls(alice)
        assert isinstance(await error_of(at.knock(Credentials(tls=with_pair))), Unauthenticated), "it is not asked for"
        assert (await at.knock(Credentials(tls=with_pair), mutual=True)).name == "alice"
        assert (await at.knock(Credentials(token=token, tls=with_pair), mutual=True)).name == "bob"
        wrong = await error_of(at.knock(Credentials(token=f"{token}x", tls=with_pair), mutual=True))
        assert isinstance(wrong, Unauthenticated)


@pytest.mark.contract("C40")
async def test_a_role_is_needed_with_a_certificate_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node = authority.pair("n1", uris=("spiffe://mesh/node/n1",))
    rules = [{"match": "spiffe://mesh/node/*", "principal": "node-{}", "roles": ["node"]}]
    async with door(auth={"certificates": rules}, tls=mutual(authority)) as at:
        refused = await error_of(at.knock(Credentials(tls=authority.tls(node))))
        assert isinstance(refused, PermissionDenied)
        assert refused.message.startswith("node-n1 may not call")


async def test_a_renewed_server_certificate_is_shown_to_new_connections_and_old_ones_stay(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, token = create_token(tmp_path / "tokens.yaml", "bob", frozenset({Role.CALLER}), None)
    first = authority.pair("server")
    tls = {"certificate": first.certificate, "key": first.key}
    async with door(auth={"tokens": tmp_path / "tokens.yaml"}, tls=tls) as at:
        shown = Credentials(token=token, tls=authority.tls())
        async with open_channel(at.address, credentials=shown) as channel:
            await raw_unary(channel, DESCRIBE)(b"")
            assert await asyncio.to_thread(shown_by, at, authority) == first.serial
            second = authority.pair("server")
            async with asyncio.timeout(20):
                while await asyncio.to_thread(shown_by, at, authority) != second.serial:
                    await asyncio.sleep(0.1)
            await raw_unary(channel, DESCRIBE)(b"")
            assert (await at.knock(shown)).name == "bob"

            with capture_logs() as logged:  # half of a change: the key is of another certificate
                second.key.write_bytes(Authority(tmp_path / "x").pair("y").key.read_bytes())
                async with asyncio.timeout(20):
                    while not any(line["event"] == "changed files are not used" for line in logged):
                        assert (await at.knock(shown)).name == "bob"
                        await asyncio.sleep(0.1)
            assert await asyncio.to_thread(shown_by, at, authority) == second.serial


async def test_grpc_is_told_of_a_changed_certificate_once(tmp_path: Path) -> None:
    def read(content: bytes) -> bytes:
        return content

    file = tmp_path / "file"
    file.write_bytes(b"first")
    renewal = Renewal(Watched([file], read, field="tls"))
    assert renewal() is None
    file.write_bytes(b"the second")
    async with asyncio.timeout(20):
        while (told := renewal()) is None:
            await asyncio.sleep(0.1)
    assert told == b"the second"
    assert renewal() is None


async def test_a_client_takes_its_renewed_certificate_into_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.pair("client", subject="CN=alice,O=People")
    async with (
        door(auth={"certificates": RULES}, tls=mutual(authority)) as at,
        open_channel(at.address, credentials=Credentials(tls=authority.tls(client))) as channel,
    ):
        await raw_unary(channel, DESCRIBE)(b"")
        assert at.let_in[-1].name == "alice"
        authority.pair("client", uris=("spiffe://mesh/coordinator/c9",))
        async with asyncio.timeout(20):
            while at.let_in[-1].name != "coordinator-c9":
                await asyncio.sleep(0.1)
                await raw_unary(channel, DESCRIBE)(b"")


async def test_a_client_takes_its_renewed_token_into_use(tmp_path: Path) -> None:
    tokens, file = tmp_path / "tokens.yaml", tmp_path / "token"
    bobs, carols = (create_token(tokens, name, frozenset({Role.CALLER}), None)[1] for name in ("bob", "carol"))
    file.write_text(f"{bobs}\n")
    async with (
        door(auth={"tokens": tokens}) as at,
        open_channel(at.address, credentials=Credentials(token_file=file)) as channel,
    ):
        await raw_unary(channel, DESCRIBE)(b"")
        assert at.let_in[-1].name == "bob"
        file.write_text(carols)
        async with asyncio.timeout(20):
            while at.let_in[-1].name != "carol":
                await asyncio.sleep(0.1)
                await raw_unary(channel, DESCRIBE)(b"")


async def test_a_client_believes_only_servers_of_its_authority_under_their_name(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    _, token = create_token(tmp_path / "tokens.yaml", "bob", frozenset({Role.CALLER}), None)
    elsewhere = authority.pair("server", hosts=("mesh.example.org",))
    tls = {"certificate": elsewhere.certificate, "key": elsewhere.key}
    async with door(auth={"tokens": tmp_path / "tokens.yaml"}, tls=tls) as at:
        assert isinstance(await error_of(at.knock(Credentials(token=token, tls=authority.tls()))), Unavailable)
        named = authority.tls(server_name="mesh.example.org")
        assert (await at.knock(Credentials(token=token, tls=named))).name == "bob"
        stranger = other.tls(server_name="mesh.example.org")
        assert isinstance(await error_of(at.knock(Credentials(token=token, tls=stranger))), Unavailable)
        assert len(at.let_in) == 1


@pytest.mark.contract("C40")
@pytest.mark.parametrize(
    ("tls", "words"),
    [
        ({"certificate": "server.pem"}, "tls.certificate: needs"),
        ({"mutual_listen": "127.0.0.1:0"}, "tls.mutual_listen: needs"),
        ({"certificate": "server.pem", "key": "server.key", "mutual_listen": "127.0.0.1:0"}, "needs tls.client_ca"),
        ({"certificate": "server.pem", "key": "other.key"}, "the key is not the certificate's"),
        ({"certificate": "server.key", "key": "server.pem"}, "must be a certificate and its key"),
        ({"certificate": "server.pem", "key": "server.key", "client_ca": "server.key"}, "must be CA certificates"),
        ({"certificate": "none.pem", "key": "server.key"}, "No such file"),
    ],
)
async def test_a_service_does_not_start_with_certificates_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: dict[str, str], words: str
) -> None:
    authority = Authority(tmp_path)
    authority.pair("server")
    authority.pair("other")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=words):
        async with door(tls=tls):
            pass


async def test_rules_for_certificates_need_an_authority_and_a_principal() -> None:
    with pytest.raises(InvalidArgument, match=r"needs tls\.client_ca"):
        async with door(auth={"certificates": RULES}):
            pass
    for rule in ({"match": "CN=x", "principal": "{}"}, {"match": "CN=*", "principal": "a b {}"}):
        with pytest.raises(InvalidArgument, match=r"auth\.certificates\[0\]"):
            async with door(auth={"certificates": [{**rule, "roles": ["node"]}]}, tls={"client_ca": "x"}):
                pass


def test_a_client_refuses_files_that_make_no_sense(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.pair("client"), authority.pair("other")
    for tls, words in (
        (Tls(ca=pair.key), "must be CA certificates"),
        (Tls(ca=tmp_path / "none"), "No such file"),
        (Tls(certificate=pair.certificate), "needs a key"),
        (Tls(certificate=pair.certificate, key=other.key), "the key is not the certificate's"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            open_channel("127.0.0.1:1", credentials=Credentials(tls=tls))


class _Anybody:
    async def authenticate(self, _call: object) -> Bearer:
        raise NotImplementedError

    def has_revoked(self, _call: object) -> bool:
        return False


@pytest.mark.contract("C40")
def test_nobody_listens_beyond_this_machine_in_the_clear_unless_told_to() -> None:
    with pytest.raises(FailedPrecondition, match="without TLS") as refused:
        GrpcServer([], host="0.0.0.0", authenticator=_Anybody())
    assert refused.value.reason == "PLAINTEXT"


@pytest.mark.contract("C40")
@pytest.mark.parametrize("address", ["192.0.2.7:7400", "mesh.example.org:7400", "[2001:db8::1]:7400"])
async def test_a_token_is_not_sent_to_another_machine_in_the_clear(tmp_path: Path, address: str) -> None:
    file = tmp_path / "token"
    file.write_text("secret-token")
    for credentials in (Credentials(token="secret-token"), Credentials(token_file=file)):
        with pytest.raises(FailedPrecondition, match="in the clear") as refused:
            open_channel(address, credentials=credentials)
        assert refused.value.reason == "PLAINTEXT_TOKEN"
        assert "secret" not in refused.value.message + repr(credentials)
    async with open_channel(address, credentials=Credentials(token="t", plaintext=True)):
        pass


@pytest.mark.parametrize("token", ["two words", "line\nline", "é", "x" * 16_385])
def test_what_is_no_token_is_not_sent_as_one(token: str) -> None:
    with pytest.raises(InvalidArgument, match="token") as refused:
        open_channel("127.0.0.1:1", credentials=Credentials(token=token))
    assert token not in refused.value.message
