"""What the environment says of a client: where its mesh is, and what it shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fanfold.rpc.addresses import parse_address, parse_addresses
from fanfold.rpc.credentials import NO_CREDENTIALS, Credentials, Tls
from fanfold.settings.environment import TOKEN_VARIABLE, full_environment

SERVER_VARIABLE = "FANFOLD_SERVER"
DEFAULT_SERVER = "127.0.0.1:7400"
REGISTRY_VARIABLE = "FANFOLD_REGISTRY"
DEFAULT_REGISTRY = "127.0.0.1:7401"

CLIENT_VARIABLES = {
    SERVER_VARIABLE: DEFAULT_SERVER,
    REGISTRY_VARIABLE: DEFAULT_REGISTRY,
    TOKEN_VARIABLE: "",
    "FANFOLD_TOKEN_FILE": "",
    "FANFOLD_TLS": "",
    "FANFOLD_CA": "",
    "FANFOLD_CERT": "",
    "FANFOLD_KEY": "",
    "FANFOLD_SERVER_NAME": "",
    "FANFOLD_PLAINTEXT_TOKEN": "",
}
"""What clients heed, with what holds where it is not set."""

_YES = frozenset({"1", "true", "yes"})


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where a client finds its mesh, by the addresses of coordinators and job registry, and what it shows them."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    credentials: Credentials = NO_CREDENTIALS
    registry: str = DEFAULT_REGISTRY


def client_settings() -> ClientSettings:
    """What a client needs to know.

    Raises:
        InvalidArgument: FANFOLD_SERVER has no addresses with commas between, or FANFOLD_REGISTRY is no address.
    """
    given = client_variables()
    return ClientSettings(
        parse_addresses(given[SERVER_VARIABLE], field=SERVER_VARIABLE),
        _credentials(given),
        str(parse_address(given[REGISTRY_VARIABLE], field=REGISTRY_VARIABLE)),
    )


def client_variables() -> dict[str, str]:
    """What holds for each of the variables; one that is empty is as if it were not set."""
    environment = full_environment()
    return {name: environment.get(name) or default for name, default in CLIENT_VARIABLES.items()}


def _credentials(given: dict[str, str]) -> Credentials:
    def file(name: str) -> Path | None:
        return Path(given[name]) if given[name] else None

    token = given[TOKEN_VARIABLE]
    tls = Tls(
        ca=file("FANFOLD_CA"),
        certificate=file("FANFOLD_CERT"),
        key=file("FANFOLD_KEY"),
        server_name=given["FANFOLD_SERVER_NAME"],
    )
    return Credentials(
        token=token,
        token_file=None if token else file("FANFOLD_TOKEN_FILE"),
        tls=tls if tls != Tls() or given["FANFOLD_TLS"] in _YES else None,
        plaintext=given["FANFOLD_PLAINTEXT_TOKEN"] in _YES,
    )
