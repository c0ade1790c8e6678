"""`fanfold token`, and what the options before a command show."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fanfold.cli.connection import _tls_of
from fanfold.cli.main import app
from fanfold.cli.options import Shown
from fanfold.errors import InvalidArgument
from fanfold.rpc.credentials import Tls


def fanfold(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=True)


@pytest.mark.parametrize(
    ("words", "lasts"),
    [
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("8w", timedelta(weeks=8)),
    ],
)
def test_a_token_is_printed_once_and_lasts_as_long_as_it_was_said(tmp_path: Path, words: str, lasts: timedelta) -> None:
    file = tmp_path / "tokens.yaml"
    made = fanfold("token", "create", "--principal", "alice", "--role", "caller", "--expires", words, "--file", file)
    assert made.exit_code == 0
    token = made.stdout.strip()
    assert token.startswith("fft_")
    assert token not in made.stderr

    listed = json.loads(fanfold("token", "list", "--json", "--file", file).stdout)["tokens"]
    assert [(each["principal"], each["roles"]) for each in listed] == [("alice", ["caller"])]
    assert "sha256" not in listed[0]
    end = datetime.fromisoformat(listed[0]["expires"])
    assert abs(end - datetime.now(UTC) - lasts) < timedelta(minutes=1)


def test_a_list_tells_whose_tokens_there_are_and_never_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    roles = ("--role", "operator", "--role", "caller")
    token = fanfold("token", "create", "--principal", "boss", *roles, "--file", file).stdout.strip()
    _, token_id, secret = token.split("_", 2)
    listed = fanfold("token", "list", "--file", file).stdout
    _, row = listed.splitlines()
    assert row.split()[:4] == [token_id, "boss", "caller,", "operator"]
    assert row.endswith("never")
    assert secret not in listed


@pytest.mark.parametrize("words", ["30", "d", "0d", "-1d", "1y", "1d2h", "9999999d", "999999w"])
def test_a_time_that_is_none_is_refused(tmp_path: Path, words: str) -> None:
    file = tmp_path / "tokens.yaml"
    made = fanfold("token", "create", "--principal", "a", "--role", "caller", f"--expires={words}", "--file", file)
    assert isinstance(made.exception, InvalidArgument)
    assert made.exception.violations[0].field == "--expires"
    assert not file.exists()


def test_a_file_that_is_not_there_has_no_tokens(tmp_path: Path) -> None:
    listed = fanfold("token", "list", "--json", "--file", tmp_path / "none.yaml")
    assert json.loads(listed.stdout) == {"tokens": []}


def test_options_say_how_tls_is_spoken_and_the_environment_says_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANFOLD_CA", raising=False)
    assert _tls_of(Shown()) is None
    assert _tls_of(Shown(tls=True)) == Tls()
    assert _tls_of(Shown(ca=Path("ca.pem"))) == Tls(ca=Path("ca.pem"))
    monkeypatch.setenv("FANFOLD_CA", "ca.pem")
    pair = Shown(cert=Path("c"), key=Path("k"))
    assert _tls_of(pair) == Tls(ca=Path("ca.pem"), certificate=Path("c"), key=Path("k"))
