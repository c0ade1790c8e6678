"""Settings: a file, then the environment, then what was given by hand. The only reader of `os.environ`."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fanfold.errors import FieldViolation, InvalidArgument
from fanfold.model.validation import nearest_name, violations_of
from fanfold.rpc.addresses import parse_address, parse_addresses
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials, Tls
from fanfold.rpc.variables import added_variables

SERVER_VARIABLE = "FANFOLD_SERVER"
DEFAULT_SERVER = "127.0.0.1:7400"
REGISTRY_VARIABLE = "FANFOLD_REGISTRY"
DEFAULT_REGISTRY = "127.0.0.1:7401"
TOKEN_VARIABLE = "FANFOLD_TOKEN"  # noqa: S105 - its name
NESTING = "__"

_YES = frozenset({"1", "true", "yes"})

CHILD_VARIABLES = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "TZ", "USER"}
)
"""What child processes see of the environment, together with the LC_ variables."""

_Model = TypeVar("_Model", bound=BaseModel)
_Location = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where a client finds its mesh, by the addresses of coordinators and job registry, and what it shows them."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    credentials: Credentials = NO_CREDENTIALS
    registry: str = DEFAULT_REGISTRY


@dataclass(frozen=True, slots=True)
class _Layer:
    """Settings from one source. `source` names the place of a key in it, for people."""

    values: Mapping[str, Any]
    source: Callable[[_Location], str]


def load_settings(
    model: type[_Model], *, file: Path | None = None, env_prefix: str, overrides: Mapping[str, Any] | None = None
) -> _Model:
    """Settings of type `model`: those in `file`, over them the environment's, over them `overrides`.

    A key `listen.port` is the variable `<env_prefix>LISTEN__PORT`; lists and mappings are given as JSON. A prefix that
    ends in two underscores keeps clear of the variables that Kubernetes makes up for services of the same name.

    Args:
        model: a pydantic model with `extra="forbid"`.
        file: YAML, or TOML if it is called so. None means no file.
        env_prefix: what the names of its variables begin with, in upper case.
        overrides: nested mappings, as from a command line; None means not given.

    Raises:
        InvalidArgument: names each wrong key, the limit, and the place that it comes from; never a value.
    """
    layers = [
        _Layer(_given(overrides or {}), lambda _: "given on the command line"),
        _environment_layer(env_prefix),
        *([_file_layer(file)] if file else []),
    ]
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged = _merged(merged, layer.values)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        where = [
            _place(tuple(details["loc"]), layers, env_prefix, file) for details in error.errors(include_input=False)
        ]
        meant = [_meant(model, details) for details in error.errors(include_input=False)]
        found = zip(violations_of(error, ""), meant, where, strict=True)
        raise InvalidArgument(
            violations=[
                FieldViolation(wrong.field, f"{wrong.description}{nearest} ({place})")
                for wrong, nearest, place in found
            ],
            reason="SETTINGS_INVALID",
        ) from None


def _meant(model: type[BaseModel], details: ErrorDetails) -> str:
    """Of an unknown key, the words that say which one was probably meant."""
    if details["type"] != "extra_forbidden":
        return ""
    *parents, key = details["loc"]
    section: type[BaseModel] | None = model
    for parent in parents:
        if section is not None and isinstance(parent, str):  # numbers are places in lists
            field = section.model_fields.get(parent)
            section = field and _section_of(field.annotation)
    nearest = nearest_name(str(key), section.model_fields) if section else ""
    return f"; did you mean {nearest}?" if nearest else ""


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field of this type is, or has."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _section_of(each))), None)


def client_settings() -> ClientSettings:
    """What a client needs to know.

    Raises:
        InvalidArgument: FANFOLD_SERVER has no addresses with commas between, or FANFOLD_REGISTRY is no address.
    """
    servers = os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    registry = os.environ.get(REGISTRY_VARIABLE) or DEFAULT_REGISTRY
    return ClientSettings(
        parse_addresses(servers, field=SERVER_VARIABLE),
        _client_credentials(),
        str(parse_address(registry, field=REGISTRY_VARIABLE)),
    )


def _client_credentials() -> Credentials:
    def given(name: str) -> str:
        return os.environ.get(name, "")

    def file(name: str) -> Path | None:
        return Path(given(name)) if given(name) else None

    token = given(TOKEN_VARIABLE)
    tls = Tls(
        ca=file("FANFOLD_CA"),
        certificate=file("FANFOLD_CERT"),
        key=file("FANFOLD_KEY"),
        server_name=given("FANFOLD_SERVER_NAME"),
    )
    return Credentials(
        token=token,
        token_file=None if token else file("FANFOLD_TOKEN_FILE"),
        tls=tls if tls != Tls() or given("FANFOLD_TLS") in _YES else None,
        plaintext=given("FANFOLD_PLAINTEXT_TOKEN") in _YES,
    )


def child_environment(extra: Iterable[str] = ()) -> dict[str, str]:
    """The environment for a child process: what is harmless, and the variables named in `extra`; so no secrets."""
    allowed = CHILD_VARIABLES.union(extra)
    return {name: value for name, value in os.environ.items() if name in allowed or name.startswith("LC_")}


def adopt_environment(environment: Mapping[str, str]) -> None:
    """Make variables that were handed over those of this process, for settings and libraries to find."""
    os.environ.update(environment)


def full_environment() -> dict[str, str]:
    """All of the environment, for children that are to have it."""
    return dict(os.environ)


def command_environment() -> dict[str, str]:
    """The environment for a command of whoever calls us: all of theirs, but for the token that we show."""
    ours = added_variables() | {TOKEN_VARIABLE}
    return {name: value for name, value in os.environ.items() if name not in ours}


def _given(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in overrides.items()
        if value is not None
    }


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(under, value) if both and under is not None else value
    return merged


def _place(location: _Location, layers: Sequence[_Layer], env_prefix: str, file: Path | None) -> str:
    """Where the setting at `location` comes from; where to give it if it comes from nowhere."""
    deepest = max(layers, key=lambda layer: _depth(layer.values, location))  # of equals the one on top
    depth = _depth(deepest.values, location)
    if depth == len(location) or any(isinstance(part, int) for part in location[:depth]):
        return deepest.source(location)
    variable = env_prefix + NESTING.join(map(str, location)).upper()
    return f"give it as {variable}" + (f" or in {file}" if file else "")


def _depth(values: Any, location: _Location) -> int:
    """How many parts of `location` lead to something in `values`."""
    for depth, part in enumerate(location):
        match values:
            case Mapping() if part in values:
                values = values[part]
            case list() if isinstance(part, int) and part < len(values):
                values = values[part]
            case _:
                return depth
    return len(location)


def _environment_layer(prefix: str) -> _Layer:
    values: dict[str, Any] = {}
    names: dict[_Location, str] = {}
    for name in sorted(os.environ):
        if not name.startswith(prefix) or name == prefix:
            continue
        path = tuple(name.removeprefix(prefix).lower().split(NESTING))
        below = values
        for part in path[:-1]:
            below = below.setdefault(part, {})
            if not isinstance(below, dict):
                raise InvalidArgument.of_field(name, "is given both as a whole and in parts")
        below[path[-1]] = _parsed(os.environ[name])
        names[path] = name

    def source(location: _Location) -> str:
        found = [name for path, name in names.items() if all(a == b for a, b in zip(path, location, strict=False))]
        return f"in {', '.join(found)}"

    return _Layer(values, source)


def _parsed(text: str) -> Any:
    """Lists and mappings from JSON; all else stays text, which the model converts."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return json.loads(text)
    except ValueError:  # as "[::1]:7400"
        return text


def _file_layer(file: Path) -> _Layer:
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}", reason="SETTINGS_UNREADABLE") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{file}: must be UTF-8", reason="SETTINGS_UNREADABLE") from None
    return _toml_layer(file, text) if file.suffix == ".toml" else _yaml_layer(file, text)


def _toml_layer(file: Path, text: str) -> _Layer:
    try:
        return _Layer(tomllib.loads(text), lambda _: f"in {file}")
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{file}: {error}", reason="SETTINGS_UNREADABLE") from None


def _yaml_layer(file: Path, text: str) -> _Layer:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        values = loader.construct_document(root) if root else {}
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InvalidArgument(f"{file}{line}: {error.problem}", reason="SETTINGS_UNREADABLE") from None
    except yaml.YAMLError:
        raise InvalidArgument(f"{file}: must be YAML text", reason="SETTINGS_UNREADABLE") from None
    if not isinstance(values, dict):
        raise InvalidArgument(f"{file}: must be a mapping of settings", reason="SETTINGS_UNREADABLE")
    return _Layer(values, lambda location: f"in {file} line {_line(root, location)}")


class _Loader(yaml.SafeLoader):
    """Refuses keys that are given twice, of which YAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _line(node: yaml.Node | None, location: _Location) -> int:
    line = 0 if node is None else node.start_mark.line
    for part in location:
        match node:
            case yaml.MappingNode():
                found = next(((key, value) for key, value in node.value if key.value == str(part)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line, found[1]
            case yaml.SequenceNode():
                node = node.value[int(part)]
                line = node.start_mark.line
            case _:
                break
    return line + 1
