"""How fast replays are: kvhouse beside AISimulate and Vidur, on the same requests in one run.

    python benchmarks/peers_replay.py --azure AZURE.csv --mooncake MOONCAKE.jsonl
    python benchmarks/peers_replay.py --azure AZURE.csv --venvs DIR       # installs them there once
    python benchmarks/peers_replay.py --azure AZURE.csv --peers aisimulate

One A100 of 80 GB, Llama-3-8B for Azure's requests and Llama-3.1-8B with a prefix cache for
Mooncake's, in bfloat16; steps of at most 2,048 tokens and 256 requests, a pool of as many blocks.
Requests that exceed the model's length are left out for all. Prints wall-clock and CPU seconds of
the replay alone, reading a trace apart; medians for kvhouse and AISimulate, one run for Vidur,
which is asked for the first of Azure's requests only and knows no hash ids. What differs is said in
README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

from kvhouse.replayer.setup import Setup
from kvhouse.replayer.traces import TraceRequest, read_trace
from replay_speed import setup_of, variant

PEERS = ("aisimulate", "vidur")
#: What pip is asked for; AISimulate comes as a wheel only, beside a placeholder.
WANTED = {"aisimulate": ("--only-binary", ":all:", "aisimulate"), "vidur": ("vidur",)}
#: As many tokens as AISimulate's hash ids stand for.
ID_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Run:
    """What one replay took."""

    version: str
    seconds: float
    cpu_seconds: float
    finished: int


def fitting(setup: Setup, most: int | None) -> Setup:
    """The same replay of the first requests that are not too long for the model."""
    limit = setup.config.max_length
    requests = (r for r in setup.trace.requests if r.prompt_tokens + r.output_tokens <= limit)
    return replace(setup, trace=replace(setup.trace, requests=tuple(islice(requests, most))))


def run_kvhouse(setup: Setup) -> Run:
    """Replay with kvhouse, in this process."""
    begun, cpu = time.perf_counter(), time.process_time()
    result = setup.drive()
    return Run("", time.perf_counter() - begun, time.process_time() - cpu, result.finished)


def run_peer(peer: str, python: Path, job: dict[str, Any]) -> Run:
    """Replay with a peer, in its own virtual environment and a folder that goes afterwards."""
    script = Path(__file__).with_name(f"peer_{peer}.py")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, script],
            input=json.dumps({**job, "folder": folder}),
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"{peer} failed:\n{done.stderr[-6000:]}")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def aisimulate_job(setup: Setup, trace: Path) -> dict[str, Any]:
    """What AISimulate is to replay; its trace is written to a file."""
    numbers = count()
    lines = [_mooncake_line(request, numbers) for request in setup.trace.requests]
    trace.write_text("\n".join(lines) + "\n")
    capacity = {"type": "fixed", "blocks": setup.scenario().pool.blocks}
    cache = {"block_size": setup.block_size, "prefix_caching": setup.prefix_cache}
    limits = {"max_batched_tokens": setup.token_budget, "max_sequences": setup.max_running}
    config = {
        "traffic": {
            "source": {"type": "trace", "paths": [str(trace)], "format": "mooncake"},
            "load": {"type": "trace_timestamps"},
        },
        "engine": {
            "mode": "aggregated",
            "model": "meta-llama/Meta-Llama-3.1-8B",  # the same layers as 3; it knows no 3
            "hardware": "a100_sxm",
            "backend": "vllm",
            "workers": {
                "aggregated": {"scheduler": limits, "kv_cache": {**cache, "capacity": capacity}}
            },
        },
    }
    return {"config": config}


def _mooncake_line(request: TraceRequest, numbers: count[int]) -> str:
    """A request as Mooncake writes it; without hash ids it gets some that no other has."""
    blocks = -(-request.prompt_tokens // ID_TOKENS)
    ids = request.hash_ids or tuple(islice(numbers, blocks))
    line = {
        "timestamp": request.arrival * 1e3,
        "input_length": request.prompt_tokens,
        "output_length": request.output_tokens,
        "hash_ids": ids[:blocks],
    }
    return json.dumps(line)


def vidur_job(setup: Setup) -> dict[str, Any]:
    """What Vidur is to replay, and what its steps cost."""
    layers = len(setup.model.layers)
    flops = sum(part.attention_flops(1) for layer in setup.model.layers for part in layer.parts)
    costs = {
        "bandwidth": setup.device.bandwidth,
        "flops": setup.roofline.flop_rate,
        # A token takes two FLOPs a weight, and a weight has two bytes: one number for both.
        "layer_weight_bytes": setup.model.weight_bytes(None) / layers,
        "layer_token_bytes": setup.layout.bytes_per_token / layers,
        "layer_pair_flops": flops / layers,
    }
    return {
        "costs": costs,
        "block_size": setup.block_size,
        "blocks": setup.scenario().pool.blocks,
        "watermark": setup.watermark,
        "max_running": setup.max_running,
        "token_budget": setup.token_budget,
        "requests": [(r.arrival, r.prompt_tokens, r.output_tokens) for r in setup.trace.requests],
    }


def python_of(peer: str, folder: Path) -> Path:
    """The interpreter of a virtual environment that has a peer; both are made where missing."""
    place = folder / peer
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *WANTED[peer]], check=True)
    return python


def median(work: Callable[[], Run], times: int) -> Run:
    """The run of median seconds, and the median of the CPU seconds."""
    runs = sorted((work() for _ in range(times)), key=lambda run: run.seconds)
    cpu_seconds = statistics.median(run.cpu_seconds for run in runs)
    return replace(runs[len(runs) // 2], cpu_seconds=cpu_seconds)


def compare(title: str, setup: Setup, pythons: dict[str, Path], times: int) -> None:
    """Replay with everyone, and print a row each."""
    tokens = sum(request.output_tokens for request in setup.trace.requests)
    asked = len(setup.trace.requests)
    print(f"{title}: {asked:,} requests, {tokens:,} output tokens")
    ours = median(partial(run_kvhouse, setup), times)
    _show(f"kvhouse, {variant()}", ours, ours, asked, tokens)
    with tempfile.TemporaryDirectory() as folder:
        for peer, python in pythons.items():
            if peer == "vidur":
                run = run_peer(peer, python, vidur_job(setup))
            else:
                job = aisimulate_job(setup, Path(folder) / "trace.jsonl")
                run = median(partial(run_peer, peer, python, job), times)
            _show(f"{peer} {run.version}", run, ours, asked, tokens)


def _show(name: str, run: Run, ours: Run, asked: int, tokens: int) -> None:
    if run.finished != asked:
        raise SystemExit(f"{name} finished {run.finished:,} of {asked:,} requests")
    print(
        f"  {name:40} {run.seconds:8.2f} s  {run.cpu_seconds:8.2f} s of CPU  "
        f"{run.finished / run.seconds:10,.0f} requests/s  {tokens / run.seconds:12,.0f} tokens/s  "
        f"kvhouse is {run.seconds / ours.seconds:6.2f} times as fast",
        flush=True,
    )


def main() -> None:
    """Compare on what was given."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--azure", help="Azure's conversations of 2023, CSV")
    parser.add_argument("--mooncake", help="Mooncake's conversations, JSONL")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--venvs", type=Path, help="where their virtual environments are, or go")
    parser.add_argument("--times", type=int, default=5, help="replays of which to take the median")
    parser.add_argument("--slice", type=int, default=2000, help="requests that Vidur is asked for")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = asked.venvs or Path(temporary)
        pythons = {peer: python_of(peer, place) for peer in asked.peers}
        compiled = {peer: python for peer, python in pythons.items() if peer != "vidur"}
        if asked.azure:
            setup = setup_of(read_trace(asked.azure))
            if "vidur" in pythons:
                first = fitting(setup, asked.slice)
                compare("the first Azure conversations", first, pythons, asked.times)
            compare("Azure conversations", fitting(setup, None), compiled, asked.times)
        if asked.mooncake:
            setup = setup_of(read_trace(asked.mooncake))
            title = "Mooncake conversations, prefix cache"
            compare(title, fitting(setup, None), compiled, asked.times)


if __name__ == "__main__":
    main()
