"""What every engine's script does alike: read a job, time batches by tokens, print one JSON line.

Needs the standard library alone, since each engine runs in a virtual environment of its own.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Begins the line with the figures.
MARK = "figures: "

#: When each of a batch's requests got each of its tokens, by ``time.perf_counter``.
Times = list[list[float]]


@dataclass(frozen=True)
class Row:
    """A batch: so many requests of so many tokens in and out."""

    name: str
    concurrency: int
    prompt: int
    generate: int


@dataclass(frozen=True)
class Job:
    """What is asked of a script.

    Attributes:
        model: A directory with safetensors.
        gguf: By type of the weights, files made from the same.
        vocab: Prompts are random ids below it.
        threads: Threads to compute with.
        rows: Batches.
        seed: Decides the prompts.
        started: When the process was started, by ``time.time``.
        variant: Which of a script's several ways.
    """

    model: str
    gguf: dict[str, str]
    vocab: int
    threads: int
    rows: list[Row]
    seed: int
    started: float
    variant: str

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(row.prompt + row.generate for row in self.rows)

    @property
    def widest(self) -> int:
        """Requests of the largest batch."""
        return max(row.concurrency for row in self.rows)


def read_job() -> Job:
    """The job on standard input; its threads are those of OpenMP from here on."""
    given = json.load(sys.stdin)
    job = Job(**{**given, "rows": [Row(**row) for row in given["rows"]]})
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    return job


def run(
    job: Job,
    version: str,
    answer: Callable[[list[list[int]], int], tuple[float, Times]],
) -> None:
    """Time every row after a warm-up, and print the figures.

    Args:
        job: What is asked.
        version: Of the engine.
        answer: Has prompts answered with so many tokens each; gives when it began and the times.
    """
    draw = random.Random(job.seed)

    def prompts(count: int, length: int) -> list[list[int]]:
        return [[draw.randrange(job.vocab) for _ in range(length)] for _ in range(count)]

    answer(prompts(1, 16), 1)
    ready = time.time() - job.started
    rows = {}
    for row in job.rows:
        # As many requests, and one step's worth of prompts: what is done once is done here.
        short = max(1, min(row.prompt, 2048 // row.concurrency))
        answer(prompts(row.concurrency, short), min(4, row.generate))
        rows[row.name] = figures(row, *answer(prompts(row.concurrency, row.prompt), row.generate))
    said = {"version": version, "first_token_after": ready, "rows": rows}
    print(f"\n{MARK}{json.dumps(said)}", flush=True)


def figures(row: Row, begun: float, times: Times) -> dict[str, Any]:
    """Prefill and decode of one batch, as ``kvhouse bench`` counts them.

    Prefill: prompt tokens by the time to the last first token. Decode: tokens by time, from when
    every request has its first token until one has its last.
    """
    counts = [len(each) for each in times]
    if counts != [row.generate] * row.concurrency:
        raise SystemExit(f"{row.name}: {counts} tokens came instead of {row.generate} each")
    first, last = max(each[0] for each in times), min(each[-1] for each in times)
    tokens = sum(first < moment <= last for each in times for moment in each)
    return {
        "prefill": row.concurrency * row.prompt / (first - begun),
        "decode": tokens / (last - first) if tokens else None,
        "first_token_seconds": first - begun,
    }


class Stamps:
    """Notes when tokens come."""

    def __init__(self, requests: int) -> None:
        self.times: Times = [[] for _ in range(requests)]

    def grown(self, request: int, length: int) -> None:
        """A request has so many tokens now."""
        now = time.perf_counter()
        self.times[request].extend([now] * (length - len(self.times[request])))

    def all_grown(self, lengths: Sequence[int]) -> None:
        """Each request has so many tokens now."""
        for request, length in enumerate(lengths):
            self.grown(request, length)
