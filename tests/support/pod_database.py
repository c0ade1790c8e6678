"""Lets a cluster's pods connect to a database that listens at a socket of files: its one argument."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on all that comes, until it ends."""
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Join a connection with one to the database."""
    to_database = await asyncio.open_unix_connection(sys.argv[1])
    await asyncio.gather(pass_on(reader, to_database[1]), pass_on(to_database[0], writer))


async def main() -> None:
    """Take connections until killed."""
    server = await asyncio.start_server(connect, "127.0.0.1", 5432)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
