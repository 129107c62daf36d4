"""From a port to answers, and the way out: signals, grace, and a second signal."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import uvicorn

from kvhouse.server.address import taken
from kvhouse.server.app import make_app
from kvhouse.server.connections import Config, Connection
from kvhouse.server.desk import Desk

#: Connections that may wait to be accepted.
_BACKLOG = 2048

#: Ticks between two looks for connections whose clients take nothing more.
_SWEEP_TICKS = 100

#: Seconds after the grace time in which requests are told that they cannot finish.
_LAST_WORDS = 10


class Ending(uvicorn.Server):
    """A server that ends in two steps: a first signal lets running requests finish, a second not.

    Args:
        desk: What all requests share.
        say: Tells a person what happens.
    """

    def __init__(self, desk: Desk, say: Callable[[str], None]) -> None:
        super().__init__(
            Config(
                make_app(desk),
                desk.settings,
                math.ceil(desk.settings.grace_seconds) + _LAST_WORDS,
            )
        )
        self._desk = desk
        self._say = say

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take nothing new; a second signal ends the process at once."""
        del frame
        if self.should_exit:
            leave(128 + sig)
        self.should_exit = True
        self._desk.closing = True

    async def on_tick(self, counter: int) -> bool:
        """What uvicorn does ten times a second."""
        if counter % _SWEEP_TICKS == 0:
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish within the grace time, then tell them that they cannot."""
        grace = self._desk.settings.grace_seconds
        self._desk.stop_reading()
        self._say(f"ending; requests that run have {grace:g} s (a second signal ends at once)")

        async def cut() -> None:
            await asyncio.sleep(grace)
            self._say("the grace time is over; requests that still run are told so")
            await self._desk.close()

        cutting = asyncio.create_task(cut())
        await super().shutdown(sockets)
        cutting.cancel()


def serve(
    desk: Desk, bound: socket.socket, ready: Callable[[], None], say: Callable[[str], None]
) -> None:
    """Answer until a signal comes.

    Args:
        desk: What all requests share.
        bound: Where to listen; from ``bind``.
        ready: Called once connections are accepted.
        say: Tells a person what happens.

    Raises:
        KvhouseError: Another server has begun to listen there in the meantime.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise taken(host, port, error) from None
    ready()
    Ending(desk, say).run([bound])


def leave(code: int) -> NoReturn:
    """End the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os._exit(code)
