"""Time a grid of 10,000 decode floors through the API: ``python benchmarks/planner_grid.py``.

Prints the median of several grids in seconds, for a model with one kind of layers and for one with
several.
"""

from dataclasses import replace
from statistics import median
from time import perf_counter

from kvhouse import devices, spec
from kvhouse.layout import KVLayout
from kvhouse.planner.grid import grid

ONE_KIND = spec.load("llama-3.1-8b")
#: The time depends on the layers alone, so the weights may be those of another model.
SEVERAL_KINDS = replace(ONE_KIND, layers=spec.load("gemma-3-27b").layers, name="gemma-3-27b layers")
REPEATS = 7


def main() -> None:
    """Print a line for each model."""
    device = devices.get("h100-80g")
    for model in (ONE_KIND, SEVERAL_KINDS):
        layout = KVLayout.of(model)
        times = []
        for _ in range(REPEATS):
            start = perf_counter()
            result = grid(
                model,
                layout,
                device,
                batches=range(1, 101),
                lengths=range(1000, 101_000, 1000),
                kv_memory=40 * 2**30,
                max_length=101_000,
            )
            times.append(perf_counter() - start)
        points = sum(map(len, result.seconds))
        print(f"{model.name}: {points:,} points, median {median(times):.4f} s of {REPEATS}")


if __name__ == "__main__":
    main()
