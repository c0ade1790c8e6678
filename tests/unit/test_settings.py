"""Settings from a file, the environment and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from fanfold.errors import InvalidArgument
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials, Tls
from fanfold.sdk.servers import credentials_of
from fanfold.settings import Given, child_environment, client_settings, full_environment, load_settings
from fanfold.settings.variables import unknown_variables

PREFIX = "FANFOLD_TEST__"
SECRET = "hunter2-do-not-tell"


class Listen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 7400


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    listen: Listen = Listen()
    ratio: float = 0.5
    verbose: bool = False
    labels: dict[str, str] = {}
    nodes: list[Listen] = []
    advertise: str = ""


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in full_environment():
        if name.startswith("FANFOLD_"):
            monkeypatch.delenv(name)


def _file(tmp_path: Path, text: str, name: str = "node.yaml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def _load(file: Path | None = None, **overrides: Any) -> Settings:
    return load_settings(Settings, file=file, env_prefix=PREFIX, overrides=overrides)


def _wrong(file: Path | None = None, **overrides: Any) -> dict[str, str]:
    """What is said of each wrong key."""
    with pytest.raises(InvalidArgument) as raised:
        _load(file, **overrides)
    assert SECRET not in str(raised.value)
    return {violation.field: violation.description for violation in raised.value.violations}


def test_the_environment_goes_over_the_file_and_what_is_given_by_hand_over_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, "name: file\nratio: 0.1\nverbose: true\nlisten:\n  host: file.example\n  port: 1\n")
    monkeypatch.setenv(PREFIX + "NAME", "env")
    monkeypatch.setenv(PREFIX + "LISTEN__PORT", "2")
    monkeypatch.setenv(PREFIX + "RATIO", "0.2")
    settings = _load(file, ratio=0.3, verbose=None, listen={"port": 3, "host": None})
    assert settings == Settings(name="env", ratio=0.3, verbose=True, listen=Listen(host="file.example", port=3))


def test_toml_is_read_as_well(tmp_path: Path) -> None:
    file = _file(tmp_path, 'name = "toml"\n[listen]\nport = 9\n[[nodes]]\nport = 10\n', "node.toml")
    assert _load(file) == Settings(name="toml", listen=Listen(port=9), nodes=[Listen(port=10)])


@pytest.mark.parametrize(("name", "text"), [("node.yaml", "name: x\n"), ("node.toml", 'name = "x"\n')])
def test_files_may_begin_with_the_mark_that_some_editors_write(tmp_path: Path, name: str, text: str) -> None:
    assert _load(_file(tmp_path, f"\N{ZERO WIDTH NO-BREAK SPACE}{text}", name)).name == "x"


def test_variables_hold_json_for_lists_and_mappings_and_plain_text_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "NODES", '[{"port": 1}, {"port": 2}]')
    monkeypatch.setenv(PREFIX + "LABELS__zone", "a")
    monkeypatch.setenv(PREFIX + "LABELS__RACK", "12")
    monkeypatch.setenv(PREFIX + "VERBOSE", "true")
    monkeypatch.setenv(PREFIX + "ADVERTISE", "[::1]:7400")
    settings = _load(name="x")
    assert settings.nodes == [Listen(port=1), Listen(port=2)]
    assert settings.labels == {"zone": "a", "rack": "12"}
    assert settings.verbose
    assert settings.advertise == "[::1]:7400"


def test_variables_that_kubernetes_makes_up_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_TEST_PORT", "tcp://10.0.0.1:7400")
    monkeypatch.setenv("FANFOLD_TEST_SERVICE_HOST", "10.0.0.1")
    assert _load(name="x") == Settings(name="x")


def test_wrong_keys_of_a_file_are_named_with_line_and_limit(tmp_path: Path) -> None:
    text = "# comment\nname: x\nlisten:\n  host: y\n  port: 70000\nnodes:\n  - port: 1\n  - prot: {0}\nratio: {0}\n"
    file = _file(tmp_path, text.format(SECRET))
    assert _wrong(file) == {
        "listen.port": f"must be less than or equal to 65535 (in {file} line 5)",
        "nodes[1].prot": f"unknown field; did you mean port? (in {file} line 8)",
        "ratio": f"must be a valid number, unable to parse string as a number (in {file} line 9)",
    }


def test_a_wrong_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, "name: x\nlisten:\n  port: 1\n")
    monkeypatch.setenv(PREFIX + "LISTEN__PORT", "-1")
    monkeypatch.setenv(PREFIX + "TYPO__DEEP", SECRET)
    monkeypatch.setenv(PREFIX + "NODES", '[{"port": 1}, {"port": 99999}]')
    assert _wrong(file) == {
        "listen.port": f"must be greater than or equal to 0 (in {PREFIX}LISTEN__PORT)",
        "nodes[1].port": f"must be less than or equal to 65535 (in {PREFIX}NODES)",
        "typo": f"unknown field (in {PREFIX}TYPO__DEEP)",
    }


def test_what_is_given_by_hand_is_named_as_such(tmp_path: Path) -> None:
    file = _file(tmp_path, "name: x\nlisten:\n  port: 1\n")
    assert _wrong(file, listen={"port": -1}) == {
        "listen.port": "must be greater than or equal to 0 (given on the command line)"
    }


def test_what_is_missing_is_told_with_where_it_goes(tmp_path: Path) -> None:
    file = _file(tmp_path, "verbose: true\n")
    assert _wrong() == {"name": f"is required (give it as {PREFIX}NAME)"}
    assert _wrong(file) == {"name": f"is required (give it as {PREFIX}NAME or in {file})"}


def test_a_variable_that_nests_too_deep_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "NODES", "[" * 50_000)
    with pytest.raises(InvalidArgument) as raised:
        _load(name="x")
    assert [(it.field, PREFIX + "NODES" in it.description) for it in raised.value.violations] == [("nodes", True)]


def test_a_variable_cannot_be_given_whole_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "LISTEN", "x")
    monkeypatch.setenv(PREFIX + "LISTEN__PORT", "1")
    assert _wrong(name="x") == {f"{PREFIX}LISTEN__PORT": "is given both as a whole and in parts"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: x\nname: y\n", "line 2: name is given twice"),
        (f"listen:\n  port: 1\n  port: 2 # {SECRET}\n", "line 3: port is given twice"),
        (f"name: [{SECRET}\n", "line 2: "),
        ("- a\n- b\n", "must be a mapping of settings"),
        ("just text", "must be a mapping of settings"),
        ("name: \x00", "must be YAML text"),
        ("name: 2026-13-45", "must be YAML text"),
        ("? [name]\n: x\n", "must be YAML text"),
        ("[" * 3_000, "must be YAML text"),
        ("name: !!python/object:os.system x", "line 1: could not determine a constructor"),
        ("a: 1\n---\nb: 2\n", "line 2: "),
    ],
)
def test_files_that_are_not_settings_are_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(InvalidArgument) as raised:
        _load(file)
    assert raised.value.message.startswith(str(file))
    assert said in raised.value.message
    assert SECRET not in raised.value.message
    assert raised.value.reason == "SETTINGS_UNREADABLE"


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    missing, binary, broken = tmp_path / "none.yaml", tmp_path / "binary.yaml", tmp_path / "broken.toml"
    binary.write_bytes(b"name: \xff")
    broken.write_text("name = \n")
    for file, said in (
        (missing, "No such file"),
        (binary, "must be UTF-8"),
        (broken, "line 1"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(InvalidArgument, match=said) as raised:
            _load(file)
        assert str(file) in raised.value.message


def test_an_empty_file_is_no_settings(tmp_path: Path) -> None:
    assert _load(_file(tmp_path, "# nothing yet\n"), name="x") == Settings(name="x")
    assert _load(_file(tmp_path, ""), name="x") == Settings(name="x")


def test_clients_take_the_server_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_settings().servers == ("127.0.0.1:7400",)
    monkeypatch.setenv("FANFOLD_SERVER", "[::1]:7500, here:7401")
    assert client_settings().servers == ("[::1]:7500", "here:7401")
    monkeypatch.setenv("FANFOLD_SERVER", "here:7400,nonsense")
    with pytest.raises(InvalidArgument, match="FANFOLD_SERVER: must be host:port"):
        client_settings()


def test_children_get_what_is_harmless_and_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    monkeypatch.setenv("LD_PRELOAD", "/evil.so")
    monkeypatch.setenv("PYTHONPATH", "/evil")
    child = child_environment()
    assert child["PATH"] == "/bin"
    assert child["LC_TIME"] == "C"
    assert not {"ANTHROPIC_API_KEY", "LD_PRELOAD", "PYTHONPATH"} & child.keys()
    assert child_environment(["ANTHROPIC_API_KEY", "NOT_SET"]) == child | {"ANTHROPIC_API_KEY": SECRET}
    assert full_environment()["LD_PRELOAD"] == "/evil.so"


CREDENTIALS = ("TOKEN", "TOKEN_FILE", "TLS", "CA", "CERT", "KEY", "SERVER_NAME", "PLAINTEXT_TOKEN")


@pytest.mark.contract("C40")
@pytest.mark.parametrize(
    ("environment", "credentials"),
    [
        ({}, NO_CREDENTIALS),
        ({"TOKEN": "t"}, Credentials(token="t")),
        ({"TOKEN_FILE": "f"}, Credentials(token_file=Path("f"))),
        ({"TOKEN": "t", "TOKEN_FILE": "f"}, Credentials(token="t")),
        ({"TOKEN": "", "CA": ""}, NO_CREDENTIALS),
        ({"TLS": "1"}, Credentials(tls=Tls())),
        ({"TLS": "0"}, NO_CREDENTIALS),
        ({"CA": "ca.pem", "SERVER_NAME": "mesh"}, Credentials(tls=Tls(ca=Path("ca.pem"), server_name="mesh"))),
        ({"CERT": "c", "KEY": "k"}, Credentials(tls=Tls(certificate=Path("c"), key=Path("k")))),
        ({"TOKEN": "t", "PLAINTEXT_TOKEN": "1"}, Credentials(token="t", plaintext=True)),
    ],
)
def test_a_client_shows_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], credentials: Credentials
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(f"FANFOLD_{name}", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(f"FANFOLD_{name}", value)
    assert client_settings().credentials == credentials


@pytest.mark.contract("C40")
def test_a_client_shows_what_it_is_given_in_place_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_TOKEN", "of the environment")
    monkeypatch.setenv("FANFOLD_CA", "ca.pem")
    tls = Tls(ca=Path("ca.pem"))
    assert credentials_of() == Credentials(token="of the environment", tls=tls)
    assert credentials_of("mine") == Credentials(token="mine", tls=tls)
    assert credentials_of(token_file=Path("f")) == Credentials(token_file=Path("f"), tls=tls)
    assert credentials_of("mine", tls=False) == Credentials(token="mine")
    assert credentials_of("mine", tls=True) == Credentials(token="mine", tls=Tls())


@pytest.mark.contract("C40")
def test_children_never_see_what_a_client_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.setenv(f"FANFOLD_{name}", "secret")
    assert "secret" not in child_environment(["PATH"]).values()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FANFOLD_TSET__NAME", f"{PREFIX}NAME"),
        ("FANFOLD_OHTER__NAME", "FANFOLD_OTHER__NAME"),
        ("FANFOLD_TEST_LISTEN_PORT", f"{PREFIX}LISTEN__PORT"),
        ("FANFOLD_SERVERS", "FANFOLD_SERVER"),
        ("FANFOLD_QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ", ""),
        ("FANFOLD_QQQQQQQQQQQQQQ__NAME", ""),
    ],
)
def test_a_variable_that_means_nothing_is_told_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, SECRET)
    (wrong,) = unknown_variables(Settings, PREFIX, ["FANFOLD_OTHER__"])
    assert wrong.field == name
    assert wrong.description == "unknown variable" + (f"; did you mean {meant}?" if meant else "")


def test_variables_of_other_services_of_clients_and_of_kubernetes_are_no_mistakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["FANFOLD_OTHER__NAME", "FANFOLD_TOKEN", f"{PREFIX}TYPO", "FANFOLD_COORDINATOR_SERVICE_PORT_GRPC"]
    names += ["FANFOLD_COORDINATOR_SERVICE_HOST", "FANFOLD_COORDINATOR_PORT", "FANFOLD_COORDINATOR_PORT_7400_TCP_ADDR"]
    for name in names:
        monkeypatch.setenv(name, "tcp://10.0.0.1:7400")
    assert unknown_variables(Settings, PREFIX, ["FANFOLD_OTHER__"]) == []


def test_what_is_sound_is_kept_beside_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "name: x\nlisten:\n  host: y\n  port: 70000\nnodes:\n  - port: 1\n  - port: -1\nratio: 0.25\ntypo: 1\n"
    given = Given(Settings, file=_file(tmp_path, text), env_prefix=PREFIX)
    settings, wrong = given.sound()
    assert settings == Settings(name="x", listen=Listen(host="y"), ratio=0.25)
    assert {each.field for each in wrong} == {"listen.port", "nodes[1].port", "typo"}
    nothing, wrong = Given(Settings, env_prefix=PREFIX).sound()
    assert (nothing, [each.field for each in wrong]) == (None, ["name"])


def test_each_setting_knows_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, "name: x\nlisten:\n  port: 1\nlabels: {a: b}\n")
    monkeypatch.setenv(PREFIX + "LISTEN__PORT", "2")
    monkeypatch.setenv(PREFIX + "LABELS__C", "d")
    given = Given(Settings, file=file, env_prefix=PREFIX, overrides={"ratio": 1})
    assert given.sources(("name",)) == [f"in {file} line 1"]
    assert given.sources(("listen", "port")) == [f"in {PREFIX}LISTEN__PORT"]
    assert given.sources(("listen", "host")) == []
    assert given.sources(("labels",)) == [f"in {PREFIX}LABELS__C", f"in {file} line 4"]
    assert given.sources(("ratio",)) == ["given on the command line"]
