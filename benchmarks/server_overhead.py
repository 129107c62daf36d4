"""What HTTP costs: the engine in this process against the same engine behind `kvhouse serve`.

    python benchmarks/server_overhead.py [MODEL] [--streams 32] [--tokens 64] [--rounds 3]

Rounds take turns: in process the engine is stepped by itself; over HTTP the same requests come as
streams from clients in a process of their own. Printed are output tokens per second of both and
their ratio, percentiles of the time between two tokens of a stream, and of the *delay*: from the
end of the step that gave a token, by the engine's own observer, to the moment when its client has
read it. Both processes read the same monotonic clock. The last line is the CPU time of the thread
that answers, which hardly depends on what else the machine does. Everything is measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvhouse.core.step import StepPlan, StepResult
from kvhouse.engine import AsyncEngine, Engine, EngineConfig, SamplingParams
from kvhouse.server import Desk, ServerSettings, bind, url_of
from kvhouse.server.listen import Ending
from server_clients import SHORTEST, prompt

CLIENTS = Path(__file__).with_name("server_clients.py")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    asked = parser.parse_args()
    # Whole prompts in one step, so that all streams begin together.
    config = EngineConfig(kv_memory=2**29, max_length=512, token_budget=8192)
    engine = Engine.load(asked.model, config, asked.dtype)
    inside, outside, delays, busy = [], [], [], []
    rates: dict[str, list[float]] = {"in process": [], "over HTTP": []}
    with served(engine) as (url, recorder, hold, cpu_seconds):
        over_http(url, recorder, asked.streams, 8)  # warm
        for _ in range(asked.rounds):
            with hold:
                ends = in_process(engine, asked.streams, asked.tokens)
            inside.append(np.diff(ends))
            rates["in process"].append(asked.streams / np.diff(ends).mean())
            before = cpu_seconds()
            came, ended = over_http(url, recorder, asked.streams, asked.tokens)
            busy.append((cpu_seconds() - before) / came.size)
            outside.append(np.diff(came, axis=1).ravel())
            rates["over HTTP"].append(asked.streams / np.diff(came, axis=1).mean())
            delays.append((came - ended).ravel())
    show(asked, rates, np.concatenate(inside), np.concatenate(outside), np.concatenate(delays))
    print(f"CPU time of the server's event loop: {np.median(busy) * 1e6:.0f} µs per token")


def show(
    asked: argparse.Namespace,
    rates: dict[str, list[float]],
    inside: np.ndarray,
    outside: np.ndarray,
    delays: np.ndarray,
) -> None:
    """Print the figures."""
    print(f"{asked.model}, {asked.streams} streams of {asked.tokens} tokens, measured")
    for name, values in rates.items():
        print(f"{name}: {np.median(values):,.1f} tokens/s (median of {asked.rounds} rounds)")
    print(f"ratio: {np.median(rates['over HTTP']) / np.median(rates['in process']):.3f}")
    rows = (("step in process", inside), ("between tokens over HTTP", outside), ("delay", delays))
    for name, values in rows:
        p50, p90, p99 = np.percentile(values, [50, 90, 99]) * 1e3
        print(f"{name}: p50 {p50:.3f} ms, p90 {p90:.3f} ms, p99 {p99:.3f} ms")


def in_process(engine: Engine, streams: int, tokens: int) -> np.ndarray:
    """When each step ended that gave every stream a token."""
    sampling = SamplingParams(ignore_eos=True)
    answers = [engine.ask(prompt(stream), tokens, sampling) for stream in range(streams)]
    ends = []
    while not all(one.done for one in answers):
        engine.step()
        ends.append(time.perf_counter())
        for one in answers:
            one.take_tokens()
    for one in answers:
        one.cancel()
    return np.array(ends)


class Recorder:
    """When each request's tokens came, by the length of its prompt."""

    def __init__(self, then: object) -> None:
        self.ends: dict[int, list[float]] = defaultdict(list)
        self._then = then
        self._lengths: dict[int, int] = {}

    def __call__(self, plan: StepPlan, result: StepResult) -> None:
        """Take note of a step."""
        now = time.perf_counter()
        self._then(plan, result)
        for row in plan.rows:
            if row.first == 0:
                self._lengths[row.request] = row.count
            if row.samples:
                self.ends[self._lengths[row.request]].append(now)


class Hold:
    """Lets this thread have the engine while no request is there."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def __enter__(self) -> None:
        self._begun, self._over = threading.Event(), threading.Event()

        def wait() -> None:
            self._begun.set()
            self._over.wait()

        self._desk.engine._commands.put(wait)
        self._begun.wait()

    def __exit__(self, *_: object) -> None:
        self._over.set()


class served:  # noqa: N801 - a context manager
    """The engine behind HTTP, in a thread of this process."""

    def __init__(self, engine: Engine) -> None:
        self._desk = Desk(AsyncEngine(engine), ServerSettings("model"))
        self._recorder = Recorder(engine.observer)
        engine.observer = self._recorder
        self._bound = bind("127.0.0.1", 0)
        self._bound.listen(100)
        self._ending = Ending(self._desk, lambda _: None)
        self._thread = threading.Thread(target=self._ending.run, args=([self._bound],))

    def __enter__(self) -> tuple[str, Recorder, Hold, Callable[[], float]]:
        url = url_of(self._bound)
        sys.setswitchinterval(0.0005)  # as the command does
        self._thread.start()
        clock = time.pthread_getcpuclockid(self._thread.ident)
        return url, self._recorder, Hold(self._desk), lambda: time.clock_gettime(clock)

    def __exit__(self, *_: object) -> None:
        self._ending.handle_exit(signal.SIGTERM, None)
        self._thread.join()


def over_http(
    url: str, recorder: Recorder, streams: int, tokens: int
) -> tuple[np.ndarray, np.ndarray]:
    """When each token came to its client, and when its step ended: ``[streams, tokens]``."""
    recorder.ends.clear()
    command = [sys.executable, CLIENTS, url, str(streams), str(tokens)]
    done = subprocess.run(command, capture_output=True, check=True)
    came = np.array(json.loads(done.stdout))
    return came, np.array([recorder.ends[SHORTEST + stream] for stream in range(streams)])


if __name__ == "__main__":
    main()
