"""How fast a replay is: whole traces, a generated one in bounded memory, and the cost of a batch.

    python benchmarks/replay_speed.py AZURE.csv MOONCAKE.jsonl     # the public traces
    python benchmarks/replay_speed.py --block-size 16 MOONCAKE.jsonl
    python benchmarks/replay_speed.py --model gpt-oss-20b --device h100-80g AZURE.csv
    python benchmarks/replay_speed.py --host-memory 64GiB AZURE.csv
    python benchmarks/replay_speed.py --million                    # a million generated requests
    python benchmarks/replay_speed.py --curve                      # batches of 8 to 1,024

Llama-3-8B on an A100 80G, paged. Where the trace has hash ids: Llama-3.1-8B, with the prefix cache,
in blocks as long as an id stands for. The times are this process's own CPU time, one core, and are
medians; reading a trace is no part of them. The first line says whether the loops are compiled.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvhouse import devices, spec
from kvhouse.core import leap
from kvhouse.core.step import StepPlan
from kvhouse.layout import DEFAULT_BLOCK_SIZE
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.tiering import Tiering
from kvhouse.replayer.traces import Trace, read_trace
from kvhouse.units import parse_bytes

BATCHES = (8, 16, 32, 64, 128, 256, 512, 1024)
MILLION = "poisson:rate=40,prompt=lognormal(200,1),output=lognormal(60,0.8),requests=1000000,seed=1"


def variant() -> str:
    """Which of the two variants of kvhouse runs here."""
    return "plain Python" if leap.__file__.endswith(".py") else "compiled"


def setup_of(trace: Trace, block_size: int | None = None) -> Setup:
    """The replay of a trace; by default in blocks as long as its hash ids stand for, if it has any.

    Args:
        trace: The trace.
        block_size: Tokens to a block, if others than these.
    """
    device = devices.get("a100-80g")
    named = next((request for request in trace.requests if request.hash_ids), None)
    if named is None:
        size = block_size or DEFAULT_BLOCK_SIZE
        return Setup(trace, spec.load("llama-3-8b"), device, block_size=size)
    # Prompts are longer than Llama-3's 8,192 tokens here.
    model = spec.load("llama-3.1-8b")
    size = block_size or named.hash_block
    return Setup(trace, model, device, prefix_cache=True, block_size=size)


def measure(work: Callable[[], ReplayResult], times: int) -> tuple[ReplayResult, float]:
    """A result and the median of its CPU seconds."""
    spans = []
    for _ in range(times):
        begun = time.process_time()
        result = work()
        spans.append(time.process_time() - begun)
    return result, statistics.median(spans)


def show(name: str, result: ReplayResult, seconds: float) -> None:
    """One line."""
    print(
        f"{name}: {result.submitted:,} requests, {result.prompt_tokens:,} prompt and "
        f"{result.output_tokens:,} output tokens, {result.steps:,} steps: {seconds:.2f} s, "
        f"{result.submitted / seconds:,.0f} requests/s, "
        f"{result.output_tokens / seconds:,.0f} output tokens/s",
        flush=True,
    )


def curve(times: int) -> None:
    """What batches of so many cost, leaping and stepping, in microseconds."""
    print("        leaping   stepping    leaping   stepping")
    print(" batch  a step    a step      a request a request")
    for batch in BATCHES:
        trace = read_trace(f"backlog:prompt=64,output=uniform(400,600),requests={4 * batch}")
        setup = Setup(
            trace,
            spec.load("llama-3-8b"),
            devices.get("a100-80g"),
            kv_blocks=batch * 64,
            token_budget=8192,
            max_running=batch,
            watermark=0.0,
            as_backlog=True,
        )
        result, leaping = measure(setup.drive, times)
        _, stepping = measure(partial(setup.drive, on_plan=_look), 1)
        spans = [
            1e6 * seconds / count
            for count in (result.steps, result.submitted)
            for seconds in (leaping, stepping)
        ]
        print(f"{batch:6,}", *(f"{span:9.1f}" for span in spans), flush=True)


def _look(_: StepPlan) -> None:
    """Asks for plans, so that every step is taken alone."""


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("traces", nargs="*", help="trace files")
    parser.add_argument("--times", type=int, default=5, help="replays of which to take the median")
    parser.add_argument("--block-size", type=int, help="tokens to a block, for trace files")
    parser.add_argument("--model", help="another model, for trace files")
    parser.add_argument("--device", help="another device, for trace files")
    parser.add_argument("--host-memory", help="a tier below the pool, such as 64GiB")
    parser.add_argument("--stepping", action="store_true", help="take every step alone, once")
    parser.add_argument("--million", action="store_true", help="replay a million requests, once")
    parser.add_argument("--curve", action="store_true", help="cost of a step over the batch")
    asked = parser.parse_args()
    print(f"kvhouse, {variant()}")
    for name in asked.traces:
        setup = setup_of(read_trace(name), asked.block_size)
        if asked.model:
            setup = replace(setup, model=spec.load(asked.model))
        if asked.device:
            setup = replace(setup, device=devices.get(asked.device))
        if asked.host_memory:
            setup = replace(setup, tiering=Tiering(host_memory=parse_bytes(asked.host_memory)))
        if asked.stepping:
            show(f"{name}, stepping", *measure(partial(setup.drive, on_plan=_look), 1))
        show(name, *measure(setup.drive, asked.times))
    if asked.million:
        setup = setup_of(read_trace(MILLION))
        show("a million requests", *measure(setup.drive, 1))
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"at most {most:.2f} GiB of memory, reading included")
    if asked.curve:
        curve(asked.times)


if __name__ == "__main__":
    main()
