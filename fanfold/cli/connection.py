"""The connection of a command to its mesh."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fanfold.cli.options import SHOWN, Shown
from fanfold.errors import FanfoldError, InternalError, Unavailable, Unimplemented
from fanfold.rpc.credentials import Tls
from fanfold.rpc.status import NOT_GRPC
from fanfold.sdk.mesh import Mesh
from fanfold.sdk.runs import RECONNECT_TIMEOUT
from fanfold.settings import client_settings

NOT_A_COORDINATOR = "NOT_A_COORDINATOR"


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


def _tls_of(shown: Shown) -> Tls | None:
    """How TLS is spoken if an option says anything of it; the environment says the rest."""
    if not (shown.tls or shown.ca or shown.cert or shown.key):
        return None
    tls = client_settings().credentials.tls or Tls()
    return replace(tls, ca=shown.ca or tls.ca, certificate=shown.cert or tls.certificate, key=shown.key or tls.key)


async def _is_foreign(error: FanfoldError, mesh: Mesh) -> bool:
    """Whether `error` comes from what does not know the methods that every coordinator has."""
    if isinstance(error, InternalError | Unimplemented):
        # A stream that is refused while it is written to may end so, and what a coordinator does not have yet;
        # one small question gets a clear answer.
        try:
            await mesh.nodes()
        except FanfoldError as answer:
            error = answer
        else:
            return False
    return isinstance(error, Unimplemented) or error.reason == NOT_GRPC
