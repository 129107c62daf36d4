"""The clients of `server_overhead.py`, in a process that imports little and so starts soon."""

from __future__ import annotations

import asyncio
import json
import sys
import time

#: Tokens of the first prompt; each one after it is a token longer, which tells them apart.
SHORTEST = 16


def prompt(stream: int) -> list[int]:
    """The prompt of a stream, in ids that every vocabulary has."""
    return [1 + (37 * stream + place) % 90 for place in range(SHORTEST + stream)]


async def clients(url: str, streams: int, tokens: int) -> list[list[float]]:
    """When each stream's tokens came."""
    host, port = url.removeprefix("http://").split(":")
    loop = asyncio.get_running_loop()
    made = [Client(stream, tokens) for stream in range(streams)]
    for one in made:
        await loop.create_connection(lambda one=one: one, host, int(port))
    for one in made:
        one.send()
    await asyncio.gather(*(one.ended for one in made))
    return [one.came for one in made]


class Client(asyncio.Protocol):
    """One stream, read with as little work as can be."""

    def __init__(self, stream: int, tokens: int) -> None:
        self.came: list[float] = []
        self.ended = asyncio.get_running_loop().create_future()
        body = {
            "model": "model", "prompt": prompt(stream), "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        self._body = json.dumps(body).encode()
        self._tokens = tokens

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what writes."""
        self._transport = transport

    def send(self) -> None:
        """Ask."""
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + self._body)

    def data_received(self, data: bytes) -> None:
        """Take note of the tokens of a piece."""
        now = time.perf_counter()
        self.came += [now] * data.count(b'data: {"id"')
        if b'"error"' in data:
            self.ended.set_exception(RuntimeError(data.decode()))
        if len(self.came) == self._tokens and not self.ended.done():
            self.ended.set_result(None)
            self._transport.close()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(clients(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
