"""The folder that a step's program works in: the node's workspace, or a copy or git worktree of it for the step alone.

What makes and removes them are programs too (`cp`, `rm`, `git`): below the supervisor, so that they cannot hold up the
runtime and do not outlive it, and with next to no environment. A worktree holds what is committed. Hooks of the
repository do not run, and git collects no garbage in the background meanwhile, which has broken worktrees.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from executor_node.admission import Limits
from executor_node.agents.command.definition import WorkspaceUse
from executor_node.agents.command.leftovers import Claim, kept_too_long, left_behind
from executor_node.agents.command.program import Program
from executor_node.agents.command.readers import Text
from executor_node.agents.command.report import Report
from executor_node.agents.command.turns import turn_in
from executor_node.supervisor.client import Supervision
from executor_node.supervisor.protocol import Launch
from fanfold.agent import AgentFailed

NO_GARBAGE_COLLECTION = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "gc.auto", "GIT_CONFIG_VALUE_0": "0"}
"""Tells every git that a program starts not to begin one."""

_MAX_ANSWER = 64 * 2**10
_STOP_GRACE = 1.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Folder:
    """Where a step works."""

    path: Path
    is_worktree: bool = False
    """Whether git is to be told when it goes."""
    is_kept: bool = False
    """Whether it stays when the step has ended."""


class Folders:
    """Makes and removes folders of steps.

    Args:
        supervision: what launches the programs for it.
        workspace: the node's workspace.
        scratch: where folders of steps are made; None is the folder for temporary files.
        path: where programs are looked for.
        limits: how long cleaning up may take, and how many folders are kept for how long.
    """

    def __init__(
        self, supervision: Supervision, workspace: Path, *, scratch: Path | None, path: str, limits: Limits
    ) -> None:
        self._supervision = supervision
        self._workspace = workspace.resolve()
        self._scratch = scratch
        self._limits = limits
        # The workspace is what the node was told to work in, whoever owns it.
        settings = ("gc.auto=0", "core.hooksPath=/dev/null", "safe.directory=*")
        self._settings = tuple(word for each in settings for word in ("-c", each))
        self._git = ("git", "-C", str(self._workspace), *self._settings)
        self._environment = {"PATH": path, "LC_ALL": "C", "HOME": "/nonexistent", "GIT_TERMINAL_PROMPT": "0"}

    @asynccontextmanager
    async def of_step(self, use: WorkspaceUse) -> AsyncIterator[Folder]:
        """A folder for one step, which is gone after the block unless it `is_kept` by then.

        Raises:
            AgentFailed: it cannot be made, with the reason.
        """
        if use is WorkspaceUse.SHARED:
            yield Folder(self._workspace)
            return
        claim = await self._claim()
        outer = claim.folder
        folder = Folder(outer / outer.name)  # by whose name git calls the worktree: no two may have the same
        root = folder.path
        try:
            if use is WorkspaceUse.COPY:
                await self._do("cp", "-a", "--reflink=auto", "--", str(self._workspace), str(root))
            else:
                folder.is_worktree = True
                folder.path = await self._make_worktree(root)
            yield folder
        finally:
            try:
                if not folder.is_kept:
                    if folder.is_worktree:
                        await self._try_worktree("remove", "--force", "--force", str(root))
                    await self._remove(outer)
            finally:
                claim.release(is_kept=folder.is_kept)
            if folder.is_kept:
                await self._remove_kept()

    async def _claim(self) -> Claim:
        claiming = asyncio.ensure_future(asyncio.to_thread(Claim, self._scratch))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:  # which no thread hears of
            claim = await claiming
            await self._remove(claim.folder)
            claim.release(is_kept=False)
            raise

    async def remove_leftovers(self) -> None:
        """Remove the folders of steps whose node was killed, and those that were kept long enough."""
        for outer in await asyncio.to_thread(lambda: list(left_behind(self._scratch))):
            log.info("removing what a step of a killed node has left behind", folder=str(outer))
            await self._remove_with_worktree(outer)
        await self._remove_kept()

    async def _remove_kept(self) -> None:
        most, seconds = self._limits.kept_folders, self._limits.kept_folder_seconds
        for outer in await asyncio.to_thread(kept_too_long, self._scratch, most=most, seconds=seconds):
            log.info("removing what was kept of a failed step", folder=str(outer))
            await self._remove_with_worktree(outer)

    async def _remove_with_worktree(self, outer: Path) -> None:
        is_worktree = (outer / outer.name / ".git").is_file()
        await self._remove(outer)
        if is_worktree:
            await self._try_worktree("prune")

    async def _make_worktree(self, root: Path) -> Path:
        """A worktree of the commit that the workspace is at; gives the folder there that stands for the workspace."""
        subfolder = (await self._do(*self._git, "rev-parse", "--show-prefix")).strip()
        # What takes long, to write the files, is done apart, where worktrees do not wait for one another.
        async with turn_in(self._workspace, self._limits.clean_up_seconds):
            await self._do(*self._git, "worktree", "add", "--no-checkout", "--quiet", "--detach", str(root), "HEAD")
        await self._do("git", "-C", str(root), *self._settings, "reset", "--quiet", "--hard")
        return root / subfolder

    async def _try_worktree(self, *command: str) -> bool:
        """Have git do something about worktrees, one at a time: it trips over what another git takes away meanwhile."""
        async with turn_in(self._workspace, self._limits.clean_up_seconds):
            return await self._try(*self._git, "worktree", *command)

    async def _remove(self, outer: Path) -> None:
        """Remove a folder; what says whose it is goes last, so that what is left is found by the next node."""
        remove = ("rm", "-rf", "--", str(outer / outer.name), str(outer))
        if not await self._try(*remove):  # as where a step has left folders that may not be written
            await self._try("chmod", "-R", "u+rwX", "--", str(outer))
            await self._try(*remove)

    async def _do(self, *command: str) -> str:
        """Run a program, and return what it wrote."""
        reader = Text(Report(lambda _: None, self._workspace, max_bytes=0), _MAX_ANSWER)
        program = Program(self._supervision, reader, grace=_STOP_GRACE)
        launch = Launch(argv=command, environment=self._environment, directory="/")
        result = await program.run(launch, None)
        if result.failure is not None:
            raise AgentFailed(f"the step's folder cannot be made: {program.errors or result.failure.message}")
        return result.output

    async def _try(self, *command: str) -> bool:
        """Run a program, and return whether it did it; the step that it cleans up after has ended as it has ended."""
        seconds = self._limits.clean_up_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._do(*command)
        except TimeoutError:
            error = f"it took longer than {seconds:g} seconds; the next node goes on with it"
            log.warning("cannot clean up after a step", command=" ".join(command), error=error)
        except (AgentFailed, OSError) as error:
            log.warning("cannot clean up after a step", command=" ".join(command), error=str(error))
        else:
            return True
        return False
