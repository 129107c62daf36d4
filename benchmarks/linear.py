"""How fast the matrix products of a decoder are, side by side with torch's.

    python benchmarks/linear.py                              # shapes of SmolLM2-135M, bfloat16
    python benchmarks/linear.py --dtype float32 --tokens 1 32
    python benchmarks/linear.py --threads 1                  # for a busy machine
    python benchmarks/linear.py --shapes 4096x4096 4096x28672 --json

A shape ``KxN`` multiplies ``[T, K]`` with weights ``[N, K]``. Three take turns: ``Linear``,
``torch.nn.functional.linear``, and oneDNN with weights packed for it (``torch.ops.mkldnn``), which
keeps a second copy of them. Each goes round so many weights that all together are several times
any last-level cache. The ratios are times over that of ``Linear``. With one thread its processor
time is taken, which counts nothing while others have the core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from kvhouse.devices import local
from kvhouse.engine.kernels.cpu.linear import Linear

#: Of SmolLM2-135M: queries, keys and values; output; gate and up; down; head.
SHAPES = ["576x960", "576x576", "576x3072", "1536x576", "576x49152"]
TOKENS = [1, 2, 4, 8, 16, 32, 64, 256, 2048]
#: Bytes of all weights of a shape together, and seconds of a turn at least.
LEAST_BYTES, TURN_SECONDS = 96 * 2**20, 0.005

Product = Callable[[torch.Tensor, int], torch.Tensor]


def products(weights: list[torch.Tensor]) -> dict[str, Product]:
    """The ways to multiply with one of the weights."""
    own = [Linear([weight]) for weight in weights]
    found: dict[str, Product] = {
        "linear": lambda x, number: own[number](x),
        "torch": lambda x, number: torch.nn.functional.linear(x, weights[number]),
    }
    if torch.backends.mkldnn.is_available():
        packed = [torch.ops.mkldnn._reorder_linear_weight(weight, 32) for weight in weights]
        multiply = torch.ops.mkldnn._linear_pointwise
        found["packed"] = lambda x, number: multiply(x, packed[number], None, "none", [], "")
    return found


def timed(
    ways: dict[str, Product], x: torch.Tensor, count: int, turns: int
) -> dict[str, list[float]]:
    """Seconds of a product, each way and turn."""
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.thread_time
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    ways["torch"](x, 0)
    begun = clock()
    ways["torch"](x, 1)
    each = max(1, min(4 * count, int(TURN_SECONDS / (clock() - begun))))
    names = list(ways)
    for turn in range(turns + 1):
        # Whoever comes first finds other things in the caches than those who follow.
        names = [*names[1:], names[0]]
        for place, name in enumerate(names):
            way, begin = ways[name], turn * each + place * count // len(names)
            begun = clock()
            for number in range(each):
                way(x, (begin + number) % count)
            seconds[name].append((clock() - begun) / each)
    return {name: values[1:] for name, values in seconds.items()}


def row(shape: str, tokens: int, dtype: torch.dtype, seconds: dict[str, list[float]]) -> dict:
    """What the times of a shape mean."""
    inputs, outputs = map(int, shape.split("x"))
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "shape": shape,
        "tokens": tokens,
        "microseconds": {name: round(value * 1e6, 1) for name, value in middle.items()},
        "best_microseconds": {name: round(value * 1e6, 1) for name, value in best.items()},
        "ratio": {name: round(value / middle["linear"], 2) for name, value in middle.items()},
        "best_ratio": {name: round(value / best["linear"], 2) for name, value in best.items()},
        "weight_gigabytes_per_second": round(
            inputs * outputs * dtype.itemsize / middle["linear"] / 1e9, 1
        ),
        "gigaflops": round(2 * tokens * inputs * outputs / middle["linear"] / 1e9, 1),
    }


def line(found: dict) -> str:
    """A row for people."""
    others = "  ".join(
        f"{name} {found['microseconds'][name]:9.1f} us ({ratio:.2f}, best {best:.2f})"
        for (name, ratio), best in zip(
            found["ratio"].items(), found["best_ratio"].values(), strict=True
        )
        if name != "linear"
    )
    return (
        f"{found['shape']:>10} {found['tokens']:5}: {found['microseconds']['linear']:9.1f} us "
        f"{found['weight_gigabytes_per_second']:5.1f} GB/s {found['gigaflops']:6.0f} GFLOP/s  "
        f"{others}"
    )


def main() -> None:
    """Go through all shapes and numbers of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    bandwidth = local.measure().bandwidth
    torch.set_num_threads(options.threads)
    rows = []
    for shape in options.shapes:
        inputs, outputs = map(int, shape.split("x"))
        count = max(2, -(-LEAST_BYTES // (inputs * outputs * dtype.itemsize)))
        weights = [torch.randn(outputs, inputs).to(dtype) for _ in range(count)]
        with torch.inference_mode():
            ways = products(weights)
            for tokens in options.tokens:
                x = torch.randn(tokens, inputs).to(dtype)
                found = row(shape, tokens, dtype, timed(ways, x, count, options.turns))
                rows.append(found)
                if not options.json:
                    print(line(found), flush=True)
    if options.json:
        about = {"torch": torch.__version__, "threads": options.threads, "bandwidth": bandwidth}
        print(json.dumps(about | {"dtype": options.dtype, "rows": rows}, indent=1))
    else:
        print(
            f"{options.threads} threads; this machine reads {bandwidth / 1e9:.1f} GB/s from memory"
        )


if __name__ == "__main__":
    main()
