"""How fast decode attention reads KV, against what this machine reads from memory.

    python benchmarks/decode_attention.py                            # heads as SmolLM2's
    python benchmarks/decode_attention.py --heads 32 8 128           # as Llama-3-8B's
    python benchmarks/decode_attention.py --formats bf16 --cases 16x2048

A case ``RxN`` is one decode step of R requests of N tokens each, on shuffled pages. A step goes
through so many layers that their pages together are several times any last-level cache, and all
formats and cases take turns. Only the queries' pass over the pages is timed, no writing.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvhouse.core.step import Row, StepPlan
from kvhouse.devices import local
from kvhouse.engine.kernels.choose import make_kernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import pack
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.spec import FullAttention, ModelSpec

BLOCK_SIZE = 16
#: Bytes of all layers' pages together.
LEAST_BYTES = 256 * 2**20


@dataclass
class Bench:
    """One format and case: a pool, and a step that reads all of it."""

    name: str
    kv: KVTensors
    step: object
    queries: torch.Tensor
    read_bytes: int
    seconds: list[float]

    def run(self) -> None:
        """Time one pass over all layers."""
        begun = time.perf_counter()
        for layer in self.kv.layers:
            self.step.attend(layer, self.queries, None, None, 0.1)  # type: ignore[attr-defined]
        self.seconds.append(time.perf_counter() - begun)


def build(kv_format: str, case: str, heads: tuple[int, int, int], kernel: str) -> Bench:
    """Fill a pool with random vectors and prepare the step."""
    requests, tokens = (int(part) for part in case.split("x"))
    query_heads, kv_heads, size = heads
    layer = FullAttention(query_heads, kv_heads, size, size)
    blocks = requests * -(-tokens // BLOCK_SIZE)

    def laid(layers: int) -> tuple[ModelSpec, KVLayout]:
        spec = ModelSpec("bench", "Bench", (layer,) * layers, 64, 64, 10**6, 0, 0, "float32")
        return spec, KVLayout.of(spec, kv_format, BLOCK_SIZE)

    each = laid(1)[1].block_bytes * blocks
    spec, layout = laid(-(-LEAST_BYTES // each))
    kv = KVTensors(spec, layout, PoolSize(blocks))
    positions = torch.arange(blocks * BLOCK_SIZE)
    for kept in kv.layers.values():
        for vectors in kept.vectors:
            values = torch.randn(1, kv_heads, size).expand(len(positions), -1, -1)
            vectors.write(positions // BLOCK_SIZE, positions % BLOCK_SIZE, values)
    pages = list(range(blocks))
    random.Random(0).shuffle(pages)
    share = blocks // requests
    rows = tuple(
        Row(r, tokens - 1, 1, True, (tuple(pages[r * share : (r + 1) * share]),))
        for r in range(requests)
    )
    packed = pack(StepPlan(0, rows, (), (), ()), dict.fromkeys(range(requests), [0] * tokens))
    step = make_kernel(kv, kernel).prepare(packed)  # type: ignore[arg-type]
    read = requests * layout.bytes_per_token * tokens
    queries = torch.randn(requests, query_heads, size)
    return Bench(f"{kv_format:5} {case:>9}", kv, step, queries, read, [])


def lines(benches: list[Bench], bandwidth: float) -> Iterator[str]:
    """One for each."""
    for bench in benches:
        rates = [bench.read_bytes / seconds / 1e9 for seconds in bench.seconds]
        best, middle = max(rates), statistics.median(rates)
        tokens = len(bench.kv.layers) * bench.queries.shape[0]
        yield (
            f"{bench.name}: {middle:5.1f} GB/s, {middle * 1e9 / bandwidth:4.0%} of the bandwidth "
            f"(best {best:.1f}, {best * 1e9 / bandwidth:.0%}); "
            f"{statistics.median(bench.seconds) / tokens * 1e6:.1f} us a query token and layer"
        )


def main() -> None:
    """Take turns, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", default=["fp32", "bf16", "int8", "int4"])
    parser.add_argument("--cases", nargs="+", default=["32x2048", "1x32768"])
    parser.add_argument("--heads", nargs=3, type=int, default=(9, 3, 64))
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    bandwidth = local.measure().bandwidth
    print(f"{torch.get_num_threads()} threads, which read {bandwidth / 1e9:.1f} GB/s from memory")
    benches = [
        build(kv_format, case, tuple(options.heads), options.kernel)
        for case in options.cases
        for kv_format in options.formats
    ]
    with torch.inference_mode():
        for _ in range(options.turns):
            for bench in benches:
                bench.run()
    print("\n".join(lines(benches, bandwidth)))


if __name__ == "__main__":
    main()
