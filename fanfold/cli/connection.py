"""The connection of a command to its mesh."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fanfold.cli.options import SHOWN, Shown
from fanfold.errors import CALL_BROKEN, NO_CONNECTION, FanfoldError, InternalError, Unavailable, Unimplemented
from fanfold.rpc.addresses import parse_address
from fanfold.rpc.credentials import Credentials, Tls
from fanfold.rpc.status import NOT_GRPC
from fanfold.sdk.jobs import Jobs
from fanfold.sdk.mesh import Mesh
from fanfold.sdk.runs import RECONNECT_TIMEOUT
from fanfold.sdk.servers import credentials_of
from fanfold.settings import client_settings

NOT_A_COORDINATOR = "NOT_A_COORDINATOR"
NOT_A_REGISTRY = "NOT_A_REGISTRY"
REGISTRY_UNREACHABLE = "REGISTRY_UNREACHABLE"


@asynccontextmanager
async def connected(server: str | None, *, reconnect_timeout: float = RECONNECT_TIMEOUT) -> AsyncIterator[Mesh]:
    """The mesh of the coordinators at `server`, or of those that the settings name, shown what the options say.

    Raises:
        Unavailable: there is nothing, or something that is no coordinator.
    """
    shown = SHOWN.get()
    mesh = Mesh(server, token_file=shown.token_file, tls=_tls_of(shown), reconnect_timeout=reconnect_timeout)
    async with mesh:
        try:
            yield mesh
        except (InternalError, Unavailable, Unimplemented) as error:
            if await _is_foreign(error, mesh):
                raise Unavailable(f"{mesh.server} is not a fanfold coordinator", reason=NOT_A_COORDINATOR) from None
            raise


@asynccontextmanager
async def connected_jobs(registry: str | None) -> AsyncIterator[Jobs]:
    """The jobs of the registry at `registry`, or of the one that the settings name, shown what the options say.

    Raises:
        Unavailable: there is nothing, or something that is no job registry.
    """
    async with registry_reached(registry) as (address, credentials), Jobs(address, credentials=credentials) as jobs:
        yield jobs


@asynccontextmanager
async def registry_reached(registry: str | None) -> AsyncIterator[tuple[str, Credentials]]:
    """Where the job registry is, and what it is shown; what goes wrong with it is said in words.

    Raises:
        Unavailable: there is nothing, or something that is no job registry.
    """
    shown = SHOWN.get()
    address = str(parse_address(registry, field="--registry")) if registry else client_settings().registry
    try:
        yield address, credentials_of(token_file=shown.token_file, tls=_tls_of(shown))
    except (Unavailable, Unimplemented) as error:
        if isinstance(error, Unimplemented) or error.reason == NOT_GRPC:
            raise Unavailable(f"{address} is not a fanfold job registry", reason=NOT_A_REGISTRY) from None
        if error.reason != NO_CONNECTION:
            raise
        hint = "`fanfold up` starts one; --registry or FANFOLD_REGISTRY says where it is."
        raise Unavailable(
            f"{error.message}\nIs a job registry running there? {hint}", reason=REGISTRY_UNREACHABLE
        ) from None


def _tls_of(shown: Shown) -> Tls | None:
    """How TLS is spoken if an option says anything of it; the environment says the rest."""
    if not (shown.tls or shown.ca or shown.cert or shown.key):
        return None
    tls = client_settings().credentials.tls or Tls()
    return replace(tls, ca=shown.ca or tls.ca, certificate=shown.cert or tls.certificate, key=shown.key or tls.key)


async def _is_foreign(error: FanfoldError, mesh: Mesh) -> bool:
    """Whether `error` comes from what does not know the methods that every coordinator has."""
    if isinstance(error, InternalError | Unimplemented) or error.reason == CALL_BROKEN:
        # A stream that is refused while it is written to may end so, and what a coordinator does not have yet;
        # one small question gets a clear answer.
        try:
            await mesh.nodes()
        except FanfoldError as answer:
            error = answer
        else:
            return False
    return isinstance(error, Unimplemented) or error.reason == NOT_GRPC
