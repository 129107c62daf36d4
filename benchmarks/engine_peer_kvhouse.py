"""kvhouse's engine for ``engine_vs_peers.py``; the variant is ``policy:KV format``."""

from __future__ import annotations

import time
from importlib.metadata import version

from engine_peer import Job, Stamps, Times, read_job, run


def main() -> None:
    """Load, then answer batch after batch."""
    job = read_job()
    policy, kv_format = job.variant.split(":")
    import torch

    torch.set_num_threads(job.threads)
    from kvhouse.bench.row import Batch
    from kvhouse.engine import Engine, EngineConfig, SamplingParams
    from kvhouse.engine.load import load_model
    from kvhouse.layout import KVLayout

    loaded = load_model(job.model, "bfloat16")
    config = EngineConfig(kv_format=kv_format, policy=policy)
    layout = KVLayout.of(loaded.spec, kv_format, config.block_size, dtype=loaded.dtype)
    greedy = SamplingParams(ignore_eos=True)
    engines: dict[tuple[int, int], Engine] = {}

    def answer(prompts: list[list[int]], generate: int) -> tuple[float, Times]:
        engine = engines[largest(job, len(prompts))]
        stamps = Stamps(len(prompts))
        begun = time.perf_counter()
        places = {engine.submit(p, generate, greedy): i for i, p in enumerate(prompts)}
        while engine.has_work:
            for token in engine.step().tokens:
                place = places[token.request]
                stamps.grown(place, len(stamps.times[place]) + 1)
        return begun, stamps.times

    for row in job.rows:
        key = largest(job, row.concurrency)
        batch = Batch(key[0], key[1] - 1, 1)
        if key not in engines:
            engines[key] = Engine(loaded, batch.config(config, layout))
    run(job, version("kvhouse"), answer)


def largest(job: Job, concurrency: int) -> tuple[int, int]:
    """Requests and tokens of each that the pool for a batch of this width holds."""
    rows = [row for row in job.rows if row.concurrency >= concurrency]
    width = min(row.concurrency for row in rows)
    return width, max(r.prompt + r.generate for r in job.rows if r.concurrency == width)


if __name__ == "__main__":
    main()
