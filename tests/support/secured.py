"""A mesh that knows its callers: tokens in a file, TLS of an authority, and who is who."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor_node.app import running as running_node
from executor_node.supervisor.client import Supervision
from fanfold import Mesh
from fanfold.model.principal import Role
from fanfold.rpc.auth.tokens import create_token
from fanfold.rpc.credentials import Credentials
from fanfold.rpc.serving import Serving
from support.authority import Authority, Pair
from support.mesh import coordinator_alone, node_config, until_ready
from support.registries import registry_alone

PRINCIPALS: dict[str, tuple[Role, ...]] = {
    "alice": (Role.CALLER,),
    "alice/session-7": (Role.CALLER,),
    "bob": (Role.CALLER,),
    "boss": (Role.OPERATOR,),
    "watcher": (Role.OBSERVER,),
    "auditor": (Role.CALLER, Role.OBSERVER),
    "c1": (Role.COORDINATOR,),
    "c2": (Role.COORDINATOR,),
    "n1": (Role.NODE,),
    "p1": (Role.PRODUCER,),
}
"""Who is known, and what each may do."""


class Keyring:
    """The tokens and certificates of a mesh, in files of `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.tokens = folder / "tokens.yaml"
        self.authority = Authority(folder)
        self._folder = folder
        self._server = self.authority.pair("server")
        self._tokens = {
            name: create_token(self.tokens, name, frozenset(roles), None)[1] for name, roles in PRINCIPALS.items()
        }

    def credentials(self, principal: str) -> Credentials:
        """What somebody shows."""
        return Credentials(token=self._tokens[principal], tls=self.authority.tls())

    def token_file(self, principal: str) -> Path:
        """A file with somebody's token."""
        file = self._folder / f"{principal}.token"
        file.write_text(self._tokens[principal])
        return file

    def settings(self, principal: str = "") -> dict[str, Any]:
        """A service's settings about security; it calls others as `principal`."""
        settings: dict[str, Any] = {
            "auth": {"tokens": self.tokens},
            "tls": {"certificate": self._server.certificate, "key": self._server.key},
        }
        if principal:
            settings["client"] = {"token_file": self.token_file(principal), "ca": self.authority.file}
        return settings


@dataclass(frozen=True, slots=True)
class SecuredMesh:
    """Coordinators and a node that know one another by tokens, over TLS."""

    coordinators: list[Serving]
    node: Serving
    keyring: Keyring
    registry: str

    def mesh(self, principal: str, *, at: int = 0) -> Mesh:
        """The mesh as somebody sees it, through one of the coordinators."""
        shown = self.keyring.credentials(principal)
        address, registry = self.coordinators[at].address, self.registry or None
        return Mesh(address, token=shown.token, tls=shown.tls, registry=registry)


class CertifiedKeyring(Keyring):
    """Everybody has a certificate with a SPIFFE id, and nobody a token."""

    def credentials(self, principal: str) -> Credentials:
        """What somebody shows."""
        return Credentials(tls=self.authority.tls(self._pair(principal)))

    def settings(self, principal: str = "") -> dict[str, Any]:
        """A service's settings about security; it calls others as `principal`."""
        rules = [
            {"match": f"spiffe://mesh/{name}", "principal": name, "roles": roles} for name, roles in PRINCIPALS.items()
        ]
        settings = super().settings()
        settings["auth"] = {"certificates": rules}
        settings["tls"]["client_ca"] = self.authority.file
        if principal:
            pair = self._pair(principal)
            settings["client"] = {"ca": self.authority.file, "certificate": pair.certificate, "key": pair.key}
        return settings

    def _pair(self, principal: str) -> Pair:
        return self.authority.pair(principal.replace("/", "-"), uris=(f"spiffe://mesh/{principal}",))


@asynccontextmanager
async def secured_mesh(
    folder: Path,
    *,
    coordinators: int = 1,
    with_registry: bool = False,
    kind: type[Keyring] = Keyring,
    node: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[SecuredMesh]:
    """Such a mesh, ready; `settings` are the coordinators', `node` the node's."""
    keyring = kind(folder / "keys")
    workspace = folder / "workspace"
    workspace.mkdir()
    async with AsyncExitStack() as stack:
        registry = ""
        if with_registry:
            serving = await stack.enter_async_context(registry_alone(folder, **keyring.settings()))
            settings["registry"] = registry = serving.address
        up = [
            await stack.enter_async_context(
                coordinator_alone(name=f"c{number}", **keyring.settings(f"c{number}"), **settings)
            )
            for number in range(1, coordinators + 1)
        ]
        announce = {"announce_to": [each.address for each in up], **keyring.settings("n1"), **(node or {})}
        config = node_config(workspace, "node-1", "", announce)
        supervision = Supervision.spawn({"PATH": "/usr/bin:/bin"})
        serving = await stack.enter_async_context(running_node(config, supervision, {}))
        mesh = SecuredMesh(up, serving, keyring, registry)
        for number in range(coordinators):
            async with mesh.mesh("watcher", at=number) as watching:
                await until_ready(watching, 1)
        yield mesh
