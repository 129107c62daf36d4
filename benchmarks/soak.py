"""A soak of `kvhouse serve`: does it leak, stall or answer wrongly under rough traffic for long?

    python benchmarks/soak.py [MODEL] [--minutes 30] [--load 0.8] [--kv-memory 256MiB]

Starts a server, measures what it can do with all clients waiting for each other (closed loop), and
then sends requests at a share of that rate, at random times (open loop): some in bursts, some that
are wrong, some whose clients go away in the middle. Every greedy answer that comes to its end is
compared with what the engine answered before, in this process. Prints what happened, the server's
resident memory from the end of the first tenth to the end, and whether all blocks were free at the
end; exits with 1 if anything was wrong. Requests that a full queue turns away are counted by
themselves: none, unless the machine does other work than when it was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

WORDS = (
    *("house", "river", "stone", "light", "bread", "winter", "green", "seven", "open", "letter"),
    *("glass", "road", "song", "night"),
)
#: Shares of the requests that are wrong, that are left early, and that come as a burst.
BAD, LEFT, BURST = 0.1, 0.2, 0.03
BURST_SIZE = 8
#: Requests that are wrong, each in another way.
WRONG: tuple[dict[str, Any], ...] = (
    {"colour": "red"},
    {"temperature": -1},
    {"max_tokens": 0},
    {"n": 1000},
    {"prompt": 7},
    {"max_tokens": 10**9},
    {"stop": [""]},
)


#: The queue was full: what a server that has less of the machine than before has to say.
BUSY = "told to come back (429)"


class _Busy(Exception):
    """A stream was answered so."""


def _name(status: int) -> str:
    return BUSY if status == 429 else f"status {status}"


@dataclass
class Outcome:
    """What came of a soak.

    Attributes:
        counts: Requests by how they ended.
        wrong: Prompts whose answers were not the offline ones.
        memory: The server's resident bytes over time.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """How much memory grew after the first tenth, as a share."""
        settled = self.memory[len(self.memory) // 10 :]
        return settled[-1] / settled[0] - 1 if settled else 0.0


class Soak:
    """Traffic against one server.

    Args:
        client: Goes to the server.
        model: What the server calls its model.
        answers: For each prompt, its longest answer in tokens and the greedy text of it.
        seed: Decides the traffic, but for when clients go away.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        model: str,
        answers: Mapping[str, tuple[int, str]],
        seed: int = 0,
    ) -> None:
        self.outcome = Outcome()
        self._client = client
        self._model = model
        self._answers = answers
        self._prompts = list(answers)
        self._chance = random.Random(seed)

    async def closed(self, clients: int, seconds: float) -> float:
        """Requests per second with so many clients, each of which waits for its answer."""
        until = time.monotonic() + seconds
        done = 0

        async def ask_on() -> None:
            nonlocal done
            while time.monotonic() < until:
                await self._whole(self._chance.choice(self._prompts))
                done += 1

        await asyncio.gather(*(ask_on() for _ in range(clients)))
        return done / seconds

    async def open(self, rate: float, requests: int) -> None:
        """Send requests at random times, ``rate`` of them a second, and wait for their ends."""
        tasks = []
        while len(tasks) < requests:
            burst = BURST_SIZE if self._chance.random() < BURST else 1
            tasks += [asyncio.create_task(self._one()) for _ in range(burst)]
            await asyncio.sleep(self._chance.expovariate(rate / (1 + BURST * (BURST_SIZE - 1))))
        await asyncio.gather(*tasks)

    async def _one(self) -> None:
        prompt, kind = self._chance.choice(self._prompts), self._chance.random()
        try:
            if kind < BAD:
                await self._bad(prompt)
            elif kind < BAD + LEFT:
                await self._left(prompt)
            elif kind < (1 + BAD + LEFT) / 2:
                await self._streamed(prompt)
            else:
                await self._whole(prompt)
        except _Busy:
            self.outcome.counts[BUSY] += 1
        except httpx2.HTTPError as error:
            self.outcome.counts[f"failed: {type(error).__name__}"] += 1

    def _body(self, prompt: str, /, **changes: object) -> dict[str, Any]:
        most, _ = self._answers[prompt]
        asked = {"model": self._model, "prompt": prompt, "max_tokens": most, "temperature": 0}
        return {**asked, **changes}

    async def _bad(self, prompt: str) -> None:
        body = self._body(prompt, **self._chance.choice(WRONG))
        response = await self._client.post("/v1/completions", json=body)
        if response.status_code == 429:
            self.outcome.counts[BUSY] += 1
        else:
            self.outcome.counts["refused" if response.status_code == 400 else "not refused"] += 1

    async def _left(self, prompt: str) -> None:
        """Go away after a while, or between two tokens of a stream."""
        if self._chance.random() < 0.5:
            try:
                async with asyncio.timeout(self._chance.expovariate(10)):
                    await self._client.post("/v1/completions", json=self._body(prompt))
                self.outcome.counts["done before it was left"] += 1
            except TimeoutError:
                self.outcome.counts["left"] += 1
            return
        wanted = self._chance.randint(1, self._answers[prompt][0])
        async with aclosing(self._events(prompt)) as events:
            async for _ in events:
                wanted -= 1
                if not wanted:
                    break
        self.outcome.counts["left"] += 1

    async def _whole(self, prompt: str) -> None:
        response = await self._client.post("/v1/completions", json=self._body(prompt))
        if response.status_code == 200:
            self._compare(prompt, response.json()["choices"][0]["text"])
        else:
            self.outcome.counts[_name(response.status_code)] += 1

    async def _streamed(self, prompt: str) -> None:
        pieces = []
        async with aclosing(self._events(prompt)) as events:
            async for event in events:
                if "error" in event:
                    self.outcome.counts[f"stream: {event['error']['code']}"] += 1
                    return
                pieces.append(event["choices"][0]["text"])
        self._compare(prompt, "".join(pieces))

    async def _events(self, prompt: str) -> AsyncIterator[dict[str, Any]]:
        body = self._body(prompt, stream=True)
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 429:
                raise _Busy
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))

    def _compare(self, prompt: str, text: str) -> None:
        same = text == self._answers[prompt][1]
        self.outcome.counts["right" if same else "wrong"] += 1
        if not same:
            self.outcome.wrong.append(prompt)


def offline(model: str, count: int, seed: int) -> dict[str, tuple[int, str]]:
    """Prompts of all lengths, some of which begin alike, with what the engine answers to them."""
    from kvhouse.engine import Engine, EngineConfig

    chance = random.Random(seed)
    common = " ".join(chance.choices(WORDS, k=60))
    engine = Engine.load(model, EngineConfig(kv_memory=2**28, max_length=512))
    answers = {}
    for number in range(count):
        own = " ".join(chance.choices(WORDS, k=chance.randint(2, 80)))
        prompt = f"{common} {own}" if number % 2 else own
        most = chance.randint(1, 48)
        answers[prompt] = most, engine.generate([prompt], most)[0].text
    return answers


def resident(process: int) -> int:
    """Bytes of a process's resident memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def soak(said: dict[str, Any], asked: argparse.Namespace, answers: Any) -> bool:  # noqa: ANN401
    """Measure, send, and print; whether all was well."""
    # The server closes a connection that was idle for five seconds, in the middle of a request if
    # that comes at the same moment.
    limits = httpx2.Limits(max_connections=None, keepalive_expiry=2)
    async with httpx2.AsyncClient(base_url=said["url"], timeout=600, limits=limits) as client:
        run = Soak(client, said["model"], answers, asked.seed)
        capacity = await run.closed(16, min(30, asked.minutes * 6))
        rate = asked.load * capacity
        print(f"capacity {capacity:.2f} requests/s, sending {rate:.2f}/s", flush=True)

        async def watch() -> None:
            while True:
                run.outcome.memory.append(resident(said["process"]))
                await asyncio.sleep(5)

        watching = asyncio.create_task(watch())
        await run.open(rate, max(1, int(rate * asked.minutes * 60)))
        watching.cancel()
        for _ in range(600):
            state = (await client.get("/kv")).json()
            if not state["running"] + state["waiting"]:
                break
            await asyncio.sleep(0.1)
    ledger, outcome = state["ledger"], run.outcome
    free = ledger["free"] + ledger["cached"] == ledger["total"]
    for name, count in sorted(outcome.counts.items()):
        print(f"{name}: {count:,}")
    print(f"preemptions: {state['totals']['preemptions']:,}")
    print(f"tokens found in the cache: {state['totals']['found_tokens']:,}")
    first, last = outcome.memory[len(outcome.memory) // 10], outcome.memory[-1]
    print(f"resident: {first / 2**20:,.0f} MiB, then {last / 2**20:,.0f} ({outcome.growth:+.1%})")
    print(f"all blocks free at the end: {free}")
    bad = set(outcome.counts) - {"right", "refused", "left", "done before it was left", BUSY}
    return free and not bad and outcome.growth < 0.05


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.8, help="share of the capacity")
    parser.add_argument("--kv-memory", default="64MiB", help="small enough to preempt now and then")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    answers = offline(asked.model, 48, asked.seed)
    command = ("serve", asked.model, "--port", "0", "--json", "--max-length", "512")
    with subprocess.Popen(
        [sys.executable, "-c", "from kvhouse.cli import main; main()", *command,
         "--kv-memory", asked.kv_memory],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:  # fmt: skip
        try:
            lines = iter(server.stdout.readline, "}\n")
            said = json.loads("".join(lines) + "}")
            well = asyncio.run(soak(said, asked, answers))
        finally:
            server.terminate()
    return 0 if well and server.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
