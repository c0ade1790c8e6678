"""The tools of a workspace, as functions that a model calls. They answer with text of bounded length.

What a successful call read becomes a source anchor, with its lines or its URL (C4). A call that cannot do what it was
asked raises AgentFailed, which the model is told.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from urllib.parse import urljoin, urlsplit

import httpx2

from executor_node.agents.builtin.grep import search
from executor_node.agents.builtin.tool import in_thread
from executor_node.supervisor.pipe import Pipe
from executor_node.workers.context import Context
from fanfold.agent import AgentFailed

MAX_ANSWER = 32 * 2**10
"""Characters of one answer."""

_MAX_LINES = 1_000
_MAX_PATHS = 1_000
_MAX_FETCHED_BYTES = 2**20
_MAX_REDIRECTS = 5
_FETCH_SECONDS = 30.0
_AS_IT_IS = {"accept-encoding": "identity"}
"""What is packed may unpack to any size at once."""
_SHELL_SECONDS = 120.0
_MAX_PRINTED_BYTES = 2**20


class WorkspaceTools:
    """The tools of one step. `hosts` are those that `fetch` may ask."""

    def __init__(self, context: Context, hosts: tuple[str, ...]) -> None:
        self._context = context
        self._hosts = hosts

    async def read(self, path: str, first_line: int = 1, lines: int = _MAX_LINES) -> str:
        """Read lines of a text file of the workspace, at most 1,000, numbered from 1."""
        return capped(await in_thread(lambda: self._read(path, max(first_line, 1), min(max(lines, 1), _MAX_LINES))))

    async def list(self, folder: str = ".") -> str:
        """List the files directly in a folder of the workspace."""
        within = folder.strip("/")
        return capped(await in_thread(lambda: self._glob("*" if within in {"", "."} else f"{within}/*")))

    async def glob(self, pattern: str) -> str:
        """List files of the workspace that match a pattern as `src/**/*.py`."""
        return capped(await in_thread(lambda: self._glob(pattern)))

    async def grep(self, pattern: str, files: str = "**/*") -> str:
        """Find lines that match an RE2 pattern, in files of the workspace that match a glob pattern."""
        return capped(await in_thread(lambda: search(pattern, files, self._context)))

    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace `old`, which must occur once in a file of the workspace, by `new`; empty, it means a new file."""
        return await in_thread(lambda: self._edit(path, old, new))

    async def fetch(self, url: str) -> str:
        """Get the text of a web page. Only some hosts may be asked."""
        try:
            return await self._fetch(url)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:  # the last is of URLs that are none
            raise AgentFailed(f"cannot be fetched: {str(error) or type(error).__name__}") from None

    async def _fetch(self, url: str) -> str:
        async with asyncio.timeout(_FETCH_SECONDS), httpx2.AsyncClient(trust_env=False) as client:
            for _ in range(_MAX_REDIRECTS):
                self._check_host(url)
                async with client.stream("GET", url, headers=_AS_IT_IS) as response:
                    if response.headers.get("content-encoding", "identity") != "identity":
                        raise AgentFailed("the server answered in an encoding that it was not asked for")
                    if response.is_redirect:
                        url = urljoin(url, response.headers.get("location", ""))
                        continue
                    if not response.is_success:
                        raise AgentFailed(f"the server answered {response.status_code}")
                    body = bytearray()
                    async for piece in response.aiter_bytes():
                        body += piece
                        if len(body) > _MAX_FETCHED_BYTES:
                            break
                self._context.observe("fetch", url)
                return capped(bytes(body[:_MAX_FETCHED_BYTES]).decode(errors="replace"))
        raise AgentFailed("redirected too often")

    async def shell(self, command: str) -> str:
        """Run a shell command in the workspace. Answers with what it prints, and its exit code."""
        printed = bytearray()
        pipe = Pipe(lambda data: printed.extend(data[: _MAX_PRINTED_BYTES - len(printed)]))
        try:
            code = await self._run(command, pipe)
        except TimeoutError:
            raise AgentFailed(f"the command took longer than {_SHELL_SECONDS:.0f} seconds") from None
        finally:
            pipe.drain()
        return capped(f"exit code {code}\n{printed.decode(errors='replace')}")

    async def _run(self, command: str, pipe: Pipe) -> int:
        """Run a shell command until its shell has ended, and then end what is left of its group."""
        try:
            # Without a pipe of its own, for `wait` waits for the end of that, which background processes hold open.
            process = await asyncio.create_subprocess_shell(
                command,
                cwd=self._context.workspace.root,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe.writer,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(pipe.writer)
        try:
            async with asyncio.timeout(_SHELL_SECONDS):
                return await process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _read(self, path: str, first: int, count: int) -> str:
        lines = self._context.workspace.read_text(path).splitlines()
        wanted = lines[first - 1 : first - 1 + count]
        if not wanted:
            return f"no lines from {first}: the file has {len(lines):,}"
        last = first + len(wanted) - 1
        self._context.observe("read", path, f"{first}-{last}" if last > first else str(first))
        more = f"\n... {len(lines) - last:,} more lines" if last < len(lines) else ""
        return capped("\n".join(f"{number}\t{line}" for number, line in enumerate(wanted, start=first)) + more)

    def _edit(self, path: str, old: str, new: str) -> str:
        workspace = self._context.workspace
        if not old:
            workspace.write_text(path, new, create=True)
            self._context.observe("edit", path)
            return "created"
        text = workspace.read_text(path)
        if (count := text.count(old)) != 1:
            raise AgentFailed(f"the text to replace occurs {count:,} times in {path}, not once")
        before, _, after = text.partition(old)
        workspace.write_text(path, before + new + after)
        first = before.count("\n") + 1
        last = first + max(len(new.splitlines()) - 1, 0)
        self._context.observe("edit", path, f"{first}-{last}" if last > first else str(first))
        return f"replaced at line {first}"

    def _glob(self, pattern: str) -> str:
        paths = [path for path, _ in self._context.workspace.walk(pattern)]
        more = [f"... {len(paths) - _MAX_PATHS:,} more files"] if len(paths) > _MAX_PATHS else []
        return capped("\n".join([*paths[:_MAX_PATHS], *more]) or "no files")

    def _check_host(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or parts.username is not None:
            raise AgentFailed("only http and https URLs without credentials can be fetched")
        asked = {(parts.hostname or "").lower(), parts.netloc.lower()}
        if not any(_is_of(name, host.lower()) for name in asked for host in self._hosts):
            raise AgentFailed(f"the host {parts.hostname} may not be asked")


def _is_of(name: str, host: str) -> bool:
    """Whether a host is the one that is named, or within the domain that is after `*.`."""
    return name.endswith(host[1:]) if host.startswith("*.") else name == host


def capped(text: str) -> str:
    """The text, cut where it is too long, with a note."""
    return text if len(text) <= MAX_ANSWER else f"{text[:MAX_ANSWER]}\n... {len(text) - MAX_ANSWER:,} more characters"
