"""Tokens whose hashes are in a file."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc.aio
import pytest
import yaml
from structlog.testing import capture_logs

from fanfold.errors import FailedPrecondition, InvalidArgument, NotFound, Unauthenticated
from fanfold.model.principal import Principal, Role
from fanfold.rpc.auth.tokens import Tokens, create_token, read_tokens, revoke_token
from fanfold.rpc.channels import open_channel
from support.doors import Door, door
from unit.rpc.rpc_fakes import LINK, error_of, raw_stream

CALLER = frozenset({Role.CALLER})


async def refused(at: Door, header: str) -> Unauthenticated:
    error = await error_of(at.knock(header=header))
    assert isinstance(error, Unauthenticated)
    return error


async def until_refused(at: Door, token: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await at.knock_with(token)
            except grpc.aio.AioRpcError:
                break
            await asyncio.sleep(0.05)
    await refused(at, f"Bearer {token}")


@pytest.mark.contract("C40")
async def test_the_bearer_of_a_token_is_its_principal_with_its_roles(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    _, alices = create_token(file, "alice/session-7", frozenset({Role.CALLER, Role.OPERATOR}), None)
    _, bobs = create_token(file, "bob", CALLER, datetime.now(UTC) + timedelta(hours=1))
    async with door(auth={"tokens": file}) as at:
        assert await at.knock_with(alices) == Principal("alice/session-7", frozenset({Role.CALLER, Role.OPERATOR}))
        assert await at.knock(header=f"bearer  {bobs} ") == Principal("bob", CALLER)


@pytest.mark.contract("C40")
async def test_what_is_no_valid_token_is_refused_in_the_same_words_and_named_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    kept, token = create_token(file, "alice", CALLER, None)
    secret = token.rpartition(kept.id)[2].removeprefix("_")
    wrong = [
        "",
        f"Bearer {token}x",
        f"Bearer {token[:-1]}",
        f"Bearer {token[:-1]}{'A' if token[-1] != 'A' else 'B'}",
        f"Bearer {token.replace(kept.id, '0' * 12)}",
        f"Bearer fft_{kept.id}_",
        "Bearer fft_",
        "Bearer ",
        f"Basic {token}",
        token,
        f"Bearer {kept.sha256}",
        f"Bearer fft_{kept.id}_{kept.sha256}",
        f"Bearer eyJhbGciOiJub25lIn0.{secret}.",
        "Bearer " + "x" * 6000,
    ]
    with capture_logs() as logged:
        async with door(auth={"tokens": file}) as at:
            told = {(await refused(at, header)).message for header in wrong}
            assert at.let_in == []
            assert await at.knock_with(token) == Principal("alice", CALLER)
    assert len(told) == 1
    assert secret not in f"{told} {logged}"
    assert any(line["event"] == "not authenticated" for line in logged)


async def test_doubts_are_logged_about_once_a_second_however_often_somebody_knocks(tmp_path: Path) -> None:
    create_token(tmp_path / "tokens.yaml", "alice", CALLER, None)
    with capture_logs() as logged:
        async with door(auth={"tokens": tmp_path / "tokens.yaml"}) as at:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            for _ in range(20):
                await refused(at, "Bearer fft_x_y")
            most = 1 + (loop.time() - begun)
    assert 1 <= sum(line["event"] == "not authenticated" for line in logged) <= most


@pytest.mark.contract("C40")
async def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    _, token = create_token(file, "alice", CALLER, datetime.now(UTC) + timedelta(hours=1))
    tokens = yaml.safe_load(file.read_text())
    tokens["tokens"][0]["expires"] = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    file.write_text(yaml.safe_dump(tokens))
    async with door(auth={"tokens": file}) as at:
        await refused(at, f"Bearer {token}")


@pytest.mark.contract("C40")
async def test_tokens_are_created_and_revoked_while_the_service_runs(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    first, token = create_token(file, "alice", CALLER, None)
    async with door(auth={"tokens": file}) as at:
        assert (await at.knock_with(token)).name == "alice"
        second, later = create_token(file, "bob", CALLER, None)
        revoke_token(file, first.id)
        await until_refused(at, token)
        assert (await at.knock_with(later)).name == "bob"
        assert [kept.id for kept in read_tokens(file)] == [second.id]


@pytest.mark.contract("C40")
async def test_without_its_file_no_token_is_known(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    _, token = create_token(file, "alice", CALLER, None)
    async with door(auth={"tokens": file}) as at:
        assert (await at.knock_with(token)).name == "alice"
        file.unlink()
        await until_refused(at, token)


async def test_a_file_that_becomes_nonsense_leaves_the_tokens_as_they_were_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    _, token = create_token(file, "alice", CALLER, None)
    content = file.read_text()
    with capture_logs() as logged:
        async with door(auth={"tokens": file}) as at:
            file.write_text("tokens: [{id: 7")
            async with asyncio.timeout(10):
                while not any(line["event"] == "changed files are not used" for line in logged):
                    await asyncio.sleep(0.05)
            assert (await at.knock_with(token)).name == "alice"
            file.write_text(content.replace("alice", "alicia"))
            async with asyncio.timeout(10):
                while (await at.knock_with(token)).name != "alicia":
                    await asyncio.sleep(0.05)


@pytest.mark.contract("C40")
async def test_whose_token_is_revoked_or_changed_is_sent_away_from_what_goes_on_and_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    roles = frozenset({Role.COORDINATOR})
    (first, firsts), (_, seconds), (_, thirds) = (create_token(file, name, roles, None) for name in ("c1", "c2", "c3"))
    async with door(auth={"tokens": file}) as at, open_channel(at.address) as channel:
        links = [
            raw_stream(channel, LINK)(metadata=[("authorization", f"Bearer {token}")])
            for token in (firsts, seconds, thirds)
        ]
        for link in links:
            await link.write(b"")
            assert await link.read() == b""
        revoke_token(file, first.id)
        told = await error_of(links[0].read())
        assert isinstance(told, Unauthenticated)
        assert told.reason == "REVOKED"
        file.write_text(file.read_text().replace("coordinator", "observer", 1))
        assert isinstance(await error_of(links[1].read()), Unauthenticated)
        await links[2].write(b"")
        assert await links[2].read() == b""


@pytest.mark.contract("C40")
def test_a_token_that_was_given_a_shorter_life_is_no_longer_what_it_was(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    _, token = create_token(file, "alice", CALLER, datetime.now(UTC) + timedelta(hours=1))
    tokens = Tokens(file)
    bearer = tokens.bearer_of(token)
    assert tokens.has(token, bearer)
    assert tokens.has(token, bearer._replace(until=bearer.until - 1)), "its life is longer now"
    assert not tokens.has(token, bearer._replace(until=bearer.until + 1))


def test_the_file_has_nothing_that_could_be_used_as_a_token_and_is_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    kept, token = create_token(file, "alice", CALLER, None)
    assert token.startswith(f"fft_{kept.id}_")
    secret = token.removeprefix(f"fft_{kept.id}_")
    assert len(secret) >= 43  # 256 bits
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    create_token(file, "bob", CALLER, None)
    assert file.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["tokens.yaml"]
    assert len({create_token(file, "x", CALLER, None)[1] for _ in range(20)}) == 20


async def test_tokens_made_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    made = await asyncio.gather(
        *(asyncio.to_thread(create_token, file, f"p{number}", CALLER, None) for number in range(10))
    )
    assert {kept.id for kept in read_tokens(file)} == {kept.id for kept, _ in made}


def test_a_token_itself_is_no_file_of_tokens_and_is_not_told(tmp_path: Path) -> None:
    file = tmp_path / "alice.token"
    _, token = create_token(tmp_path / "tokens.yaml", "alice", CALLER, None)
    file.write_text(token)
    with pytest.raises(InvalidArgument, match=r"alice\.token: must be a file of hashed tokens") as raised:
        read_tokens(file)
    assert token not in str(raised.value)


def test_wrong_wishes_are_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    with pytest.raises(InvalidArgument, match="principal"):
        create_token(file, "not a principal", CALLER, None)
    with pytest.raises(InvalidArgument, match="role"):
        create_token(file, "alice", frozenset(), None)
    with pytest.raises(InvalidArgument, match="expires"):
        create_token(file, "alice", CALLER, datetime.now(UTC))
    with pytest.raises(FailedPrecondition, match="nowhere"):
        create_token(tmp_path / "nowhere" / "tokens.yaml", "alice", CALLER, None)
    assert not file.exists()
    create_token(file, "alice", CALLER, None)
    with pytest.raises(NotFound, match="there is no token 123"):
        revoke_token(file, "123")


@pytest.mark.parametrize(
    "content",
    ["tokens: [", "tokens: 7", "tokens: [{id: x}]", "others: []", "- 1", "tokens: [{id: x, principal: '*'}]"],
)
async def test_a_service_does_not_start_with_tokens_that_make_no_sense(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(content)
    with pytest.raises(InvalidArgument, match=r"auth\.tokens"):
        async with door(auth={"tokens": file}):
            pass
