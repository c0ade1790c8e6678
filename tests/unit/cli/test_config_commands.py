"""`fanfold serve --check-config` and `fanfold config show`."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from coordinator.config import CoordinatorConfig
from coordinator.preflight import contradictions
from executor_node.config import ExecutorNodeConfig
from fanfold.cli.main import app
from fanfold.cli.service_settings import service_settings
from fanfold.settings import full_environment
from job_registry.config import JobRegistryConfig
from support.authority import Authority

SERVICES = ("coordinator", "executor-node", "job-registry")
MODELS = {"coordinator": CoordinatorConfig, "executor-node": ExecutorNodeConfig, "job-registry": JobRegistryConfig}
SECRET = "hunter2-do-not-tell"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in full_environment():
        if name.startswith("FANFOLD_"):
            monkeypatch.delenv(name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def fanfold(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def written(tmp_path: Path, settings: dict[str, Any]) -> Path:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    return file


def wrongs(service: str, file: Path) -> dict[str, str]:
    """What is said of each field, by the command itself."""
    done = fanfold("serve", service, "--check-config", "--config", file)
    told = [line.partition(": ") for line in done.stderr.splitlines()]
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    return {field: words for field, _, words in told}


@pytest.mark.parametrize("service", SERVICES)
def test_all_addresses_are_looked_at(service: str, tmp_path: Path) -> None:
    said = wrongs(service, written(tmp_path, {"listen": "here", "metrics_listen": "there:99999"}))
    assert said.keys() == {"listen", "metrics_listen"}
    said = wrongs(service, written(tmp_path, {"listen": "127.0.0.1:7000", "metrics_listen": "127.0.0.1:7000"}))
    assert said.keys() == {"metrics_listen"}
    assert said["metrics_listen"].startswith("must be another address than listen (in ")


def test_sections_that_are_none_are_told_without_names_of_classes(tmp_path: Path) -> None:
    said = wrongs("coordinator", written(tmp_path, {"nodes": None, "limits": [], "scripts": {"providers": {"x": [1]}}}))
    assert said.keys() == {"nodes", "limits", "scripts.providers.x"}
    assert all(words.startswith("must be a mapping (in ") for words in said.values())


@pytest.mark.parametrize("service", SERVICES)
def test_nothing_is_wrong_with_the_defaults(service: str) -> None:
    done = fanfold("serve", service, "--check-config")
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"{service}: nothing is wrong with its settings.\n"


def test_what_is_wrong_in_all_places_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text(
        "listen: 0.0.0.0:7400\ncolour: red\nnodes:\n  static: [a:1, nonsense]\n  lease: soon\n"
        f"tls: {{certificate: {tmp_path}/a.pem, key: {tmp_path}/b.pem}}\nregistry: nowhere\n"
    )
    monkeypatch.setenv("FANFOLD_COORDINATOR__JOURNAL__PATH", str(tmp_path / "no" / "journal.db"))
    monkeypatch.setenv("FANFOLD_COORDINATOR__DRAIN_GRACE", "-1")
    monkeypatch.setenv("FANFOLD_CORDINATOR__NAME", SECRET)
    assert wrongs("coordinator", file) == {
        "listen": "will not listen on 0.0.0.0: no way to authenticate callers is configured (auth), so only loopback"
        f" addresses (127.0.0.1, ::1, localhost) are allowed (in {file} line 1)",
        "colour": f"unknown field (in {file} line 2)",
        "nodes.static[1]": f"must be host:port, or [IPv6 address]:port (in {file} line 4)",
        "nodes.lease": f"must be a valid number, unable to parse string as a number (in {file} line 5)",
        "tls.certificate": f"{tmp_path}/a.pem: No such file or directory (in {file} line 6)",
        "tls.key": f"{tmp_path}/b.pem: No such file or directory (in {file} line 6)",
        "registry": f"must be host:port, or [IPv6 address]:port (in {file} line 7)",
        "drain_grace": "must be greater than 0 (in FANFOLD_COORDINATOR__DRAIN_GRACE)",
        "journal.path": f"there is no folder {tmp_path}/no (in FANFOLD_COORDINATOR__JOURNAL__PATH)",
        "FANFOLD_CORDINATOR__NAME": "unknown variable; did you mean FANFOLD_COORDINATOR__NAME?",
    }


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"journal": {"path": "j.db", "lease": 20}}, "nodes.lease", "four fifths of it, 12 s, must be longer than"),
        ({"journal": {"path": "j.db", "renewal": 9}}, "journal.renewal", "must be shorter than journal.lease less"),
        ({"journal": {"path": "j.db", "lease_margin": 10}}, "journal.lease_margin", "must be shorter than"),
        ({"journal": {"objects": "o"}}, "journal.objects", "needs journal.path or journal.url"),
        ({"registry": "127.0.0.1:7401"}, "registry", "detached runs need a journal as well"),
        ({"placement": {"retry_first": 31}}, "placement.retry_first", "must not be longer than"),
    ],
)
def test_settings_of_a_coordinator_that_contradict_one_another_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], field: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (told,) = wrongs("coordinator", written(tmp_path, settings)).items()
    assert told[0] == field
    assert told[1].startswith(words)


@pytest.mark.parametrize(
    ("settings", "is_wrong"),
    [
        ({"listen": "0.0.0.0:7400"}, True),
        ({"listen": "[::]:7400"}, True),
        ({"listen": "0.0.0.0:7400", "advertise": "10.0.0.1:7400"}, False),
        ({"listen": "10.0.0.1:7400"}, False),
        ({"listen": "one.example.org:7400"}, False),
        ({"listen": "0.0.0.0:7400", "journal": {"path": "j.db"}}, False),
    ],
)
def test_a_coordinator_that_listens_everywhere_is_to_say_where_others_on_its_journal_reach_it(
    settings: dict[str, Any], is_wrong: bool
) -> None:
    config = CoordinatorConfig.model_validate({"journal": {"url": "postgresql://db.example.org/fanfold"}} | settings)
    assert [found.field for found in contradictions(config)] == ["advertise"] * is_wrong


def test_a_service_starts_with_contradictions_and_says_them_in_its_log(tmp_path: Path) -> None:
    service = service_settings("executor-node", written(tmp_path, {"capacity": {"max_concurrent_steps": 8}}))
    (doubt,) = service.doubts(service.given.settings())
    assert doubt.field == "capacity.concurrency_hint"
    assert doubt.description == "must not be more than capacity.max_concurrent_steps (the default)"


def test_faults_of_agent_files_and_folders_are_told(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "a.md").write_text("---\nname: a\ndescription: d\nkind: pithon\n---\n")
    (agents / "b.md").write_text("no front matter")
    settings = {"agents": {"directory": str(agents), "scratch": str(tmp_path / "none")}, "workspace": str(agents / "w")}
    done = fanfold("serve", "executor-node", "--check-config", "--config", written(tmp_path, settings))
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["workspace", "agents.scratch"] + ["agents.directory"] * (
        len(lines) - 2
    )
    assert any(f"{agents / 'a.md'}:4" in line and "kind" in line for line in lines)
    assert any(f"{agents / 'b.md'}" in line for line in lines)


@pytest.mark.contract("C40")
def test_certificates_are_looked_into(tmp_path: Path, authority: Authority) -> None:
    one, other = authority.pair("one"), authority.pair("other")
    old = authority.pair("old", lasts=timedelta(hours=-1))
    (tmp_path / "broken.pem").write_text("no certificate")

    def told(section: str, **files: Path) -> str:
        settings = {section: {name: str(path) for name, path in files.items()}}
        ((field, words),) = wrongs("coordinator", written(tmp_path, settings)).items()
        assert field.split(".")[0] == section
        return words

    assert "the key is not the certificate's" in told("tls", certificate=one.certificate, key=other.key)
    assert "the key is not the certificate's" in told("client", certificate=one.certificate, key=other.key)
    assert "old.pem has expired, at 20" in told("tls", certificate=old.certificate, key=old.key)
    assert "old.pem has expired, at 20" in told("client", certificate=old.certificate, key=old.key)
    assert "must be CA certificates" in told("client", ca=tmp_path / "broken.pem")
    assert "needs tls.certificate and tls.key" in told("tls", client_ca=authority.file)
    good = {
        "tls": {"certificate": str(one.certificate), "key": str(one.key), "client_ca": str(authority.file)},
        "client": {"ca": str(authority.file), "certificate": str(other.certificate), "key": str(other.key)},
    }
    assert fanfold("serve", "coordinator", "--check-config", "--config", written(tmp_path, good)).exit_code == 0


@pytest.mark.contract("C40")
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_starts_with_a_certificate_that_has_expired_says_so(
    service: str, tmp_path: Path, authority: Authority
) -> None:
    good, old = authority.pair("good"), authority.pair("old", lasts=timedelta(hours=-1))
    for pair, said in ((good, []), (old, ["tls.certificate"])):
        tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
        settings = service_settings(service, written(tmp_path, {"tls": tls}))
        doubts = settings.doubts(settings.given.settings())
        assert [doubt.field for doubt in doubts] == said
        assert all("has expired" in doubt.description for doubt in doubts)


@pytest.mark.contract("C40")
def test_who_is_to_be_believed_is_looked_into(tmp_path: Path) -> None:
    def issuer(name: str, jwks: str) -> dict[str, Any]:
        return {"issuer": name, "audience": "fanfold", "jwks": jwks}

    (tmp_path / "jwks.json").write_text("{}")
    settings = {
        "auth": {
            "tokens": str(tmp_path / "none.yaml"),
            "jwt": [
                issuer("a", "http://issuer.example/keys"),
                issuer("b", f"https://name:{SECRET}@issuer.example/keys"),
                issuer("b", str(tmp_path / "jwks.json")),
                issuer("c", "https:///keys"),
            ],
            "certificates": [{"match": "CN=a", "principal": "a", "roles": ["caller"]}],
        }
    }
    file = written(tmp_path, settings)
    said = wrongs("job-registry", file)
    assert SECRET not in str(said)
    assert {field: words.partition(" (in ")[0] for field, words in said.items()} == {
        "auth.tokens": f"{tmp_path}/none.yaml: No such file or directory",
        "auth.jwt[0].jwks": "must be https, or a file",
        "auth.jwt[1].jwks": "must have no name and password; jwks_token_file is for that",
        "auth.jwt[2].jwks": "what is there is no JWKS",
        "auth.jwt[2].issuer": "must be there once",
        "auth.jwt[3].jwks": "must be a URL with a host, or a file",
        "auth.certificates": "needs tls.client_ca",
    }


@pytest.mark.contract("C40")
def test_a_token_that_would_be_sent_in_the_clear_is_told(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("fft_x")
    settings = {"client": {"token_file": str(tmp_path / "token")}, "announce_to": ["mesh.example:7400"]}
    said = wrongs("executor-node", written(tmp_path, settings))
    assert said.keys() == {"client"}
    assert "in the clear" in said["client"]


def test_files_of_stores_are_looked_into_and_left_alone(tmp_path: Path) -> None:
    text, empty = tmp_path / "text.db", tmp_path / "empty"
    text.write_text("this is no database")
    empty.write_text("\n")
    assert (
        "is no SQLite database"
        in wrongs("job-registry", written(tmp_path, {"store": {"path": str(text)}}))["store.path"]
    )
    address = {"url": "postgresql://fanfold@db.example/fanfold", "password_file": str(empty)}
    assert "is empty" in wrongs("job-registry", written(tmp_path, {"store": address}))["store.password_file"]
    pytest.importorskip("psycopg")
    misspelt = {"store": {"url": "postgresql://fanfold@db.example/fanfold?sslmod=verify-full"}}
    assert '"sslmod"' in wrongs("job-registry", written(tmp_path, misspelt))["store.url"]
    told: list[str] = []
    for option in ("sslmode=maybe", "connect_timeout=soon", "target_session_attrs=any", "sslmode=verify-full"):
        file = written(tmp_path, {"store": {"url": f"postgresql://db.example/fanfold?{option}"}})
        said = fanfold("serve", "job-registry", "--check-config", "--config", file).stderr
        told += [line.partition(" (in ")[0] for line in said.splitlines() if line.startswith("store.url: ")]
    assert told == [
        'store.url: invalid sslmode value: "maybe"',
        'store.url: invalid connect_timeout value: "soon"',
    ]
    new = {"store": {"path": str(tmp_path / "new.db")}}
    assert fanfold("serve", "job-registry", "--check-config", "--config", written(tmp_path, new)).exit_code == 0
    assert not (tmp_path / "new.db").exists()


def test_a_file_that_is_no_settings_is_told(tmp_path: Path) -> None:
    done = fanfold("serve", "coordinator", "--check-config", "--config", tmp_path / "none.yaml")
    assert done.exit_code != 0
    assert "No such file" in str(done.exception)


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_shown_can_be_given_back(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens #1.yaml"
    file = written(tmp_path, {"log_level": "warning", "drain_grace": 5, "auth": {"tokens": str(tokens)}})
    prefix = {"executor-node": "FANFOLD_NODE__"}.get(service, f"FANFOLD_{service.upper().replace('-', '_')}__")
    monkeypatch.setenv(f"{prefix}DRAIN_GRACE", "7.5")
    monkeypatch.setenv(f"{prefix}AUTH__CERTIFICATES", json.dumps([{"match": "*", "principal": "ü", "roles": ["node"]}]))
    done = fanfold("config", "show", service, "--config", file, "--listen", "localhost:0")
    assert done.exit_code == 0
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "listen: localhost:0  # given on the command line" in lines
    assert f"drain_grace: 7.5  # {prefix}DRAIN_GRACE" in lines
    assert f"log_level: warning  # {file} line 1" in lines
    assert "log_format: console  # default" in lines
    before = service_settings(service, file, "localhost:0").given.settings()
    monkeypatch.delenv(f"{prefix}DRAIN_GRACE")
    monkeypatch.delenv(f"{prefix}AUTH__CERTIFICATES")
    again = tmp_path / "again.yaml"
    again.write_text(done.stdout)
    after = service_settings(service, again).given.settings()
    assert after.model_copy(update={"name": ""}) == before.model_copy(update={"name": ""})


def test_a_list_that_is_given_as_a_text_is_told_how_lists_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_NODE__ANNOUNCE_TO", "127.0.0.1:7400,127.0.0.1:7500")
    done = fanfold("serve", "executor-node", "--check-config")
    assert done.exit_code == 2
    assert done.stderr == 'announce_to: must be a valid list, as ["one", "two"] (in FANFOLD_NODE__ANNOUNCE_TO)\n'


def test_a_mapping_of_several_sources_names_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, {"labels": {"zone": "a", "disk": "slow"}})
    monkeypatch.setenv("FANFOLD_NODE__LABELS__DISK", "fast")
    shown = fanfold("config", "show", "executor-node", "--config", file).stdout.splitlines()
    (line,) = [line for line in shown if line.startswith("labels:")]
    assert yaml.safe_load(line) == {"labels": {"zone": "a", "disk": "fast"}}
    assert line.endswith(f"# FANFOLD_NODE__LABELS__DISK, {file} line 1")


@pytest.mark.contract("C40")
def test_no_secret_is_a_setting_and_none_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANFOLD_TOKEN", SECRET)
    monkeypatch.setenv("FANFOLD_SERVER", "mesh.example:7400")
    shown = fanfold("config", "show", "client")
    assert SECRET not in shown.output
    assert yaml.safe_load(shown.stdout)["FANFOLD_TOKEN"] == "***"
    assert "FANFOLD_SERVER: mesh.example:7400  # in the environment" in shown.stdout.splitlines()
    file = written(tmp_path, {"store": {"url": f"postgresql://me:{SECRET}@db.example/fanfold"}})
    refused = fanfold("config", "show", "job-registry", "--config", file)
    assert refused.exit_code != 0
    assert SECRET not in refused.output + str(refused.exception)
    assert SECRET not in str(wrongs("job-registry", file))


@pytest.mark.parametrize("service", ["coordinator", "executor-node", "job-registry"])
def test_files_of_traces_are_looked_for(tmp_path: Path, service: str) -> None:
    traces = {"endpoint": "http://collector.example:4318", "header_files": {"authorization": str(tmp_path / "none")}}
    said = wrongs(service, written(tmp_path, {"traces": traces}))
    assert {field: words.partition(" (in ")[0] for field, words in said.items()} == {
        "traces.header_files.authorization": f"{tmp_path}/none: No such file or directory"
    }


def test_an_endpoint_of_traces_is_given_without_what_is_added(tmp_path: Path) -> None:
    said = wrongs("coordinator", written(tmp_path, {"traces": {"endpoint": "http://127.0.0.1:4318/v1/traces/"}}))
    assert said["traces"].startswith("endpoint must end before /v1/traces, which is added")


@pytest.mark.contract("C18", "F5")
def test_coordinators_on_one_journal_must_not_have_one_name(tmp_path: Path) -> None:
    def together(*coordinators: dict[str, Any]) -> list[str]:
        options: list[str | Path] = []
        for number, settings in enumerate(coordinators):
            file = tmp_path / f"{number}.yaml"
            file.write_text(yaml.safe_dump(settings))
            options += ["--coordinator", file]
        done = fanfold("config", "check", *options)
        told = [line.split(": ")[0] for line in done.stderr.splitlines()]
        assert (done.exit_code == 2) == (told != ["coordinator"] * len(coordinators))
        return told

    kept = {"journal": {"path": str(tmp_path / "journal.db")}}
    elsewhere = {"journal": {"path": str(tmp_path / "other.db")}}
    a, b, nobody = {"name": "a", **kept}, {"name": "b", **kept}, "coordinator"
    assert together(a, b, {"name": "a", **elsewhere}, {"name": "a"}) == [nobody] * 4
    assert together(kept, kept) == [nobody] * 2, "names are made up"
    assert together(a, b, a, a) == [nobody, nobody, "name", "name"]
    hasty = {"name": "c", "journal": {**kept["journal"], "outage": 5}}
    assert together(a, b, hasty) == [nobody, nobody, "journal.outage"]
    assert together({**a, "name": 3}, a) == ["name", nobody], "what is wrong by itself is compared with nothing"


@pytest.mark.contract("F2", "C38")
def test_settings_of_services_that_do_not_go_together_are_told(tmp_path: Path) -> None:
    def together(coordinator: dict[str, Any], node: dict[str, Any], registry: dict[str, Any]) -> Result:
        files = [tmp_path / name for name in ("coordinator.yaml", "node.yaml", "registry.yaml")]
        for file, settings in zip(files, (coordinator, node, registry), strict=True):
            file.write_text(yaml.safe_dump(settings))
        options = ("--coordinator", files[0], "--node", files[1], "--job-registry", files[2])
        return fanfold("config", "check", *options)

    detached = {"registry": "127.0.0.1:7401", "journal": {"path": str(tmp_path / "journal.db")}}
    assert together(detached, {}, {}).exit_code == 0
    late = {"silence_limit": 21, "step": {"stop_grace": 6}}
    done = together({**detached, "placement": {"cancel_wait": 7}}, late, {"producers": {"grace": 40}})
    assert done.exit_code == 2
    told = [line.split(": ")[0] for line in done.stderr.splitlines()]
    assert told == ["coordinator", "step.stop_grace", "silence_limit", "producers.grace"]
    assert f"{tmp_path / 'node.yaml'} line 1" in done.stderr
    assert "together, 21 s" in done.stderr
    within = {"silence_limit": 20.9, "step": {"stop_grace": 5.9}}
    assert together({**detached, "placement": {"cancel_wait": 6}}, within, {"producers": {"grace": 41}}).exit_code == 0
    done = together({**detached, "placement": {"cancel_wait": 5}}, within, {})
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == [
        "coordinator",
        "step.stop_grace",
        "job-registry",
    ]
