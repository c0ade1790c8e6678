"""JSON Web Tokens of issuers, whose keys are in a file or behind a real HTTP server."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc.aio
import hypothesis
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import strategies as st
from jwt.algorithms import get_default_algorithms
from structlog.testing import capture_logs

from fanfold.errors import InvalidArgument, Unauthenticated
from fanfold.model.principal import Principal, Role
from fanfold.rpc.auth.doubts import NotBelieved
from fanfold.rpc.auth.jwts import Issuers
from fanfold.rpc.auth.settings import AuthSettings
from fanfold.rpc.status import from_rpc_error
from support.doors import Door, door
from support.issuers import AUDIENCE, ISSUER, TestIssuer
from unit.rpc.rpc_fakes import error_of, until

CALLER = frozenset({Role.CALLER})


def trusting(jwks: str | Path, **settings: Any) -> dict[str, Any]:
    """Settings that take tokens of the test's issuer."""
    return {"jwt": [{"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(jwks), **settings}]}


def file_of(issuer: TestIssuer, folder: Path) -> Path:
    file = folder / "jwks.json"
    file.write_text(json.dumps(issuer.jwks()))
    return file


async def is_refused(at: Door, token: str) -> bool:
    return isinstance(await error_of(at.knock_with(token)), Unauthenticated)


@pytest.mark.contract("C34", "C40")
@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
async def test_subject_and_session_make_the_principal(tmp_path: Path, algorithm: str) -> None:
    issuer = TestIssuer(algorithm)
    async with door(auth=trusting(file_of(issuer, tmp_path))) as at:
        assert await at.knock_with(issuer.token()) == Principal("alice", CALLER)
        assert await at.knock_with(issuer.token(sid="session-7")) == Principal("alice/session-7", CALLER)
        assert await at.knock_with(issuer.token(sub="auth0|17", aud=["other", AUDIENCE])) == Principal(
            "auth0|17", CALLER
        )


@pytest.mark.contract("C40")
async def test_claims_give_roles_as_configured(tmp_path: Path) -> None:
    issuer = TestIssuer()
    file = file_of(issuer, tmp_path)

    async def roles(settings: dict[str, Any], **claims: Any) -> set[str]:
        async with door(auth=trusting(file, **settings)) as at:
            return set((await at.knock_with(issuer.token(**claims))).roles)

    assert await roles({}, roles=["operator", "king", 7]) == {"operator"}
    assert await roles({}, roles="operator caller") == {"operator", "caller"}
    assert await roles({}, roles=["king"]) == {"caller"}
    named = {"roles_claim": "realm_access.roles", "roles": {"admins": "operator"}}
    assert await roles(named, realm_access={"roles": ["admins", "coordinator"]}) == {"operator"}
    assert await roles(named, realm_access=["admins"]) == {"caller"}
    single = {"principals": {"system:serviceaccount:mesh:c": ["coordinator"]}, "session_claim": ""}
    assert await roles(single, sub="system:serviceaccount:mesh:c", sid="x/y") == {"coordinator"}
    async with door(auth=trusting(file, default_roles=[], prefix="okta:")) as at:
        told = await error_of(at.knock_with(issuer.token()))
        assert "okta:alice may not call" in told.message


def forged_hmac(issuer: TestIssuer) -> str:
    """A token whose HMAC key is the issuer's public key, which everybody has."""
    key_id, key = next(iter(issuer.keys.items()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 3600}
    parts = [_coded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT", "kid": key_id}, claims)]
    signed = ".".join(parts)
    return f"{signed}.{_coded(hmac.digest(public, signed.encode(), 'sha256'))}"


def unsigned(issuer: TestIssuer) -> str:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 3600}
    return jwt.encode(claims, "", "none", {"kid": next(iter(issuer.keys))})


def changed(issuer: TestIssuer) -> str:
    header, claims, signature = issuer.token().split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=="))
    return ".".join([header, _coded(json.dumps({**told, "sub": "bob"}).encode()), signature])


def of_another_key(issuer: TestIssuer) -> str:
    other = TestIssuer(issuer.algorithm)
    return other.token({"kid": next(iter(issuer.keys))})


def _coded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.contract("C40")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda issuer: issuer.token(exp=int(time.time()) - 60), id="expired"),
        pytest.param(lambda issuer: issuer.token(exp=None), id="without an end"),
        pytest.param(lambda issuer: issuer.token(nbf=int(time.time()) + 3600), id="not valid yet"),
        pytest.param(lambda issuer: issuer.token(iss="https://evil.example.org"), id="of a foreign issuer"),
        pytest.param(lambda issuer: issuer.token(iss=None), id="of no issuer"),
        pytest.param(lambda issuer: issuer.token(aud="another service"), id="for another audience"),
        pytest.param(lambda issuer: issuer.token(aud=None), id="for no audience"),
        pytest.param(lambda issuer: issuer.token(sub=None), id="of nobody"),
        pytest.param(lambda issuer: issuer.token(sub="bob/alice"), id="of somebody nested"),
        pytest.param(lambda issuer: issuer.token(sid="x/y"), id="of a session with a slash"),
        pytest.param(lambda issuer: issuer.token(sub="a b"), id="of no principal"),
        pytest.param(lambda issuer: issuer.token({"kid": "unknown"}), id="of an unknown key"),
        pytest.param(of_another_key, id="signed by another key"),
        pytest.param(changed, id="changed"),
        pytest.param(unsigned, id="unsigned"),
        pytest.param(forged_hmac, id="signed with the public key"),
        pytest.param(lambda _: "a.b.c", id="nonsense"),
        pytest.param(lambda _: "e30.e30.", id="empty"),
        pytest.param(lambda _: f"{_coded(b'[' * 5000)}.e30.x", id="deep"),
    ],
)
@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
async def test_no_other_token_makes_anybody_known(
    tmp_path: Path, make: Callable[[TestIssuer], str], algorithm: str
) -> None:
    issuer = TestIssuer(algorithm)
    async with door(auth=trusting(file_of(issuer, tmp_path))) as at:
        token = make(issuer)
        with capture_logs() as logged:
            assert await is_refused(at, token)
        assert token not in str(logged)
        assert at.let_in == []


@pytest.mark.contract("C40")
async def test_algorithms_are_those_that_are_pinned(tmp_path: Path) -> None:
    issuer = TestIssuer("RS256")
    async with door(auth=trusting(file_of(issuer, tmp_path), algorithms=["ES256", "PS256"])) as at:
        assert await is_refused(at, issuer.token())


async def test_shared_secrets_are_taken_only_where_they_are_asked_for_and_from_a_file(tmp_path: Path) -> None:
    secret = b"s" * 32
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [{"kty": "oct", "k": _coded(secret), "kid": "shared"}]}))
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 3600}
    token = jwt.encode(claims, secret, "HS256", {"kid": "shared"})
    async with door(auth=trusting(file, algorithms=["HS256"])) as at:
        assert (await at.knock_with(token)).name == "alice"
    async with door(auth=trusting(file)) as at:
        assert await is_refused(at, token)
    with pytest.raises(InvalidArgument, match="shared secrets"):
        async with door(auth=trusting("https://id.example.org/keys", algorithms=["HS256"])):
            pass


@pytest.mark.filterwarnings("ignore:The RSA key is 1024 bits long")
async def test_weak_private_and_other_keys_are_left_out(tmp_path: Path) -> None:
    issuer = TestIssuer("RS256")
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    issuer.keys = {"weak": weak, **issuer.keys}
    jwks = issuer.jwks()
    jwks["keys"] += [
        {"kty": "unheard of"},
        7,
        {"kty": "RSA", "n": "?"},
        {**jwks["keys"][1], "use": "enc", "kid": "enc"},
    ]
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(jwks))
    async with door(auth=trusting(file)) as at:
        assert (await at.knock_with(issuer.token())).name == "alice"
        assert await is_refused(at, issuer.token({"kid": "enc"}))
        issuer.keys = {"weak": weak}
        assert await is_refused(at, issuer.token())


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": 7}', '{"keys": {"a": 1}}', '{"keys": []}', "[" * 100_000]
)
async def test_a_file_that_is_no_jwks_makes_nobody_known_until_it_is_one(tmp_path: Path, content: str) -> None:
    issuer, file = TestIssuer(), tmp_path / "jwks.json"
    file.write_text(content)
    async with door(auth=trusting(file, refresh_least=3600)) as at:
        assert await is_refused(at, issuer.token())
        file.write_text(json.dumps(issuer.jwks()))
        async with asyncio.timeout(20):
            while not isinstance(await answer_of(at, issuer.token()), Principal):
                await asyncio.sleep(0.1)


@pytest.mark.contract("C40")
async def test_new_keys_are_fetched_when_a_token_has_one_and_old_ones_are_forgotten() -> None:
    issuer = TestIssuer()
    with issuer.served() as url:
        async with door(auth=trusting(url, refresh_least=0.2)) as at:
            first = issuer.token()
            assert (await at.knock_with(first)).name == "alice"
            assert issuer.asked == 1

            issuer.rotate()
            time.sleep(0.25)  # what has to have passed since the last look
            assert (await at.knock_with(issuer.token(sub="bob"))).name == "bob"
            assert (await at.knock_with(first)).name == "alice"
            assert issuer.asked == 2

            issuer.rotate(keep=False)
            time.sleep(0.25)
            assert (await at.knock_with(issuer.token(sub="carol"))).name == "carol"
            assert await is_refused(at, first), "what was remembered goes with its key"


async def test_keys_are_looked_at_again_by_themselves(tmp_path: Path) -> None:
    issuer = TestIssuer()
    with issuer.served() as url:
        async with door(auth=trusting(url, refresh=0.2, refresh_least=3600)) as at:
            first = issuer.token()
            assert (await at.knock_with(first)).name == "alice"
            issuer.rotate(keep=False)
            asked = issuer.asked
            await until(lambda: issuer.asked >= asked + 2, 20)
            assert await is_refused(at, first)
            assert (await at.knock_with(issuer.token())).name == "alice"


async def test_made_up_keys_make_it_ask_only_so_often() -> None:
    issuer = TestIssuer()
    with issuer.served() as url:
        async with door(auth=trusting(url, refresh_least=3600)) as at:
            for number in range(10):
                assert await is_refused(at, issuer.token({"kid": f"made up {number}"}))
            assert issuer.asked == 1
            assert (await at.knock_with(issuer.token())).name == "alice"


async def test_a_service_starts_without_its_issuer_and_knows_its_callers_once_that_is_there() -> None:
    issuer = TestIssuer()
    with issuer.served() as url:
        pass
    with capture_logs() as logged:
        async with door(auth=trusting(url, refresh_least=0.1)) as at:
            assert await is_refused(at, issuer.token())
            with issuer.served(urlsplit(url).port or 0):
                time.sleep(0.15)  # what has to have passed since the last look
                assert (await at.knock_with(issuer.token())).name == "alice"
    assert any(line["event"] == "keys of an issuer cannot be had" for line in logged)


async def test_keys_that_cannot_be_had_anew_are_believed_for_a_while_only() -> None:
    issuer = TestIssuer()
    serving = ExitStack()
    url = serving.enter_context(issuer.served())
    with serving:
        async with door(auth=trusting(url, keys_max_age=3, refresh=0.5, refresh_least=0.5)) as at:
            token = issuer.token()
            assert (await at.knock_with(token)).name == "alice"
            await asyncio.sleep(4)  # longer than that, but they are had anew
            assert (await at.knock_with(issuer.token(sub="bob"))).name == "bob"
            await asyncio.to_thread(serving.close)
            assert (await at.knock_with(issuer.token(sub="carol"))).name == "carol"
            async with asyncio.timeout(30):
                while not isinstance(await answer_of(at, token), Unauthenticated):
                    await asyncio.sleep(0.2)
            assert await is_refused(at, issuer.token(sub="dave"))


async def answer_of(at: Door, token: str) -> object:
    """Who the bearer of a token is, or why that is not known."""
    try:
        return await at.knock_with(token)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


async def test_an_issuer_that_wants_a_token_for_its_keys_is_shown_one_that_may_change(tmp_path: Path) -> None:
    issuer = TestIssuer()
    issuer.wants_token = "first"
    file = tmp_path / "token"
    with issuer.served() as url:
        async with door(auth=trusting(url, jwks_token_file=file, refresh_least=0.1)) as at:
            assert await is_refused(at, issuer.token())
            file.write_text("two\nlines")
            await asyncio.sleep(0.2)  # what has to have passed since the last look
            with capture_logs() as logged:
                assert await is_refused(at, issuer.token())
            assert "lines" not in str(logged)
            file.write_text("first\n")
            await asyncio.sleep(0.2)
            assert (await at.knock_with(issuer.token())).name == "alice"
            issuer.rotate()
            issuer.wants_token = "second"
            file.write_text("second")
            await asyncio.sleep(0.2)
            assert (await at.knock_with(issuer.token(sub="bob"))).name == "bob"


async def test_redirects_and_plaintext_from_elsewhere_are_not_followed() -> None:
    issuer = TestIssuer()
    with issuer.served() as url:
        async with door(auth=trusting(url.replace("/keys", "/moved"))) as at:
            assert await is_refused(at, issuer.token())
    with pytest.raises(InvalidArgument, match="must be https"):
        async with door(auth=trusting("http://id.example.org/keys")):
            pass


async def test_a_token_is_verified_once_until_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = TestIssuer()
    verified = 0
    decode = jwt.decode

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal verified
        verified += "algorithms" in more
        return decode(*args, **more)

    monkeypatch.setattr(jwt, "decode", counted)
    async with door(auth=trusting(file_of(issuer, tmp_path), leeway=0)) as at:
        token = issuer.token(exp=int(time.time()) + 2)
        for _ in range(3):
            assert (await at.knock_with(token)).name == "alice"
        assert verified == 1
        time.sleep(2.1)
        assert await is_refused(at, token)


CLAIMS = ("iss", "aud", "sub", "sid", "exp", "nbf", "iat", "roles", "jti", "crit", "realm_access")
HEADERS = ("alg", "kid", "typ", "crit", "b64", "cty", "jwk", "x5u")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([AUDIENCE, ISSUER]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.contract("C41")
async def test_a_token_with_whatever_claims_and_headers_is_believed_or_not_and_nothing_else(tmp_path: Path) -> None:
    issuer = TestIssuer()
    settings = AuthSettings.model_validate(trusting(file_of(issuer, tmp_path), roles_claim="realm_access.roles")).jwt
    loop = asyncio.get_running_loop()

    async with Issuers(settings) as issuers:

        @hypothesis.settings(max_examples=400, deadline=None, database=None)
        @hypothesis.given(
            claims=st.dictionaries(st.sampled_from(CLAIMS), JSON),
            headers=st.dictionaries(st.sampled_from(HEADERS), JSON),
        )
        def check(claims: dict[str, Any], headers: dict[str, Any]) -> None:
            token = signed(issuer, claims, headers)
            asked = asyncio.run_coroutine_threadsafe(issuers.bearer_of(token), loop)
            with suppress(NotBelieved):
                assert asked.result(10).principal.name

        await asyncio.to_thread(check)


def signed(issuer: TestIssuer, claims: dict[str, Any], headers: dict[str, Any]) -> str:
    """A token with a good signature, made without a library, which would refuse such claims."""
    key_id, key = next(iter(issuer.keys.items()))
    all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": time.time() + 60, **claims}
    parts = [_coded(json.dumps(part).encode()) for part in ({"alg": "ES256", "kid": key_id, **headers}, all_claims)]
    text = ".".join(parts)
    return f"{text}.{_coded(get_default_algorithms()['ES256'].sign(text.encode(), key))}"
