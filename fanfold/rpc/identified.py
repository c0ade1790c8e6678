"""Channels whose calls say who makes them, and which take renewed tokens and certificates into use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import grpc
import grpc.aio

from fanfold.rpc.showing import Showing

RETIRE_SECONDS = 3600.0
"""How long calls over a connection with former certificates may go on."""

Open = Callable[[grpc.ChannelCredentials | None], grpc.aio.Channel]
"""Opens a channel, in plaintext for None."""


class IdentifiedChannel(grpc.aio.Channel):
    """A channel to one service that shows credentials with each call.

    gRPC's own ways to add metadata take a thread or a chain of coroutines for every call; this takes a function. When
    certificates change, new calls use a new connection, while those that run end on theirs.
    """

    def __init__(self, showing: Showing, open_channel: Open) -> None:
        self._showing = showing
        self._open = open_channel
        self._credentials = showing.channel_credentials()
        self._channel = open_channel(self._credentials)
        self._retiring: set[asyncio.Task[None]] = set()

    def current(self) -> grpc.aio.Channel:
        """The channel for a call that begins now."""
        credentials = self._showing.channel_credentials()
        if credentials is not self._credentials:
            retiring = asyncio.create_task(self._channel.close(RETIRE_SECONDS))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
            self._credentials, self._channel = credentials, self._open(credentials)
        return self._channel

    def _method(self, kind: str, path: str, *how: Any, **more: Any) -> Any:
        """A method that makes its calls over the channel of the moment."""
        channel = self._channel
        method = getattr(channel, kind)(path, *how, **more)

        def call(*request: Any, metadata: Any = None, **options: Any) -> Any:
            nonlocal channel, method
            if (now := self.current()) is not channel:
                channel, method = now, getattr(now, kind)(path, *how, **more)
            return method(*request, metadata=(*(metadata or ()), *self._showing.metadata()), **options)

        return call

    def unary_unary(self, method: str, *how: Any, **more: Any) -> Any:
        """A method that takes and gives one message."""
        return self._method("unary_unary", method, *how, **more)

    def unary_stream(self, method: str, *how: Any, **more: Any) -> Any:
        """A method that takes one message and gives a stream."""
        return self._method("unary_stream", method, *how, **more)

    def stream_unary(self, method: str, *how: Any, **more: Any) -> Any:
        """A method that takes a stream and gives one message."""
        return self._method("stream_unary", method, *how, **more)

    def stream_stream(self, method: str, *how: Any, **more: Any) -> Any:
        """A method that takes and gives streams."""
        return self._method("stream_stream", method, *how, **more)

    async def close(self, grace: float | None = None) -> None:
        """Close it and all its connections."""
        for retiring in self._retiring:
            retiring.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Whether it is connected."""
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until that is otherwise."""
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until it is connected."""
        await self.current().channel_ready()
