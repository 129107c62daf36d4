"""How much of the memory that an Azure trace's requests hold would hold tokens.

    python benchmarks/azure_waste.py FILE      # AzureLLMInferenceTrace_conv.csv, or any trace

Each request is looked at when it is complete, all of them together. ``contiguous-max`` reserves the
limit for each, and requests longer than the limit are cut to it; ``paged`` holds whole blocks for
requests of their own length. Both go through the placement that replay and the engine use.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from kvhouse.core.policy import Placement
from kvhouse.layout import KVLayout
from kvhouse.replayer import read_trace
from kvhouse.spec import load

LIMITS = (4096, 8192, 16384)
BLOCK_SIZES = (16, 32, 64, 128, 256, 512)


def reserved_share(lengths: Sequence[int], limit: int) -> float:
    """Share of contiguous reservations of ``limit`` tokens that holds tokens."""
    placement = Placement("contiguous-max", _layout(16), limit, limit)
    held = len(lengths) * placement.blocks_to_admit(1, 1, 1) * 16
    return sum(min(length, limit) for length in lengths) / held


def paged_waste(lengths: Sequence[int], block_size: int) -> float:
    """Share of the blocks of ``block_size`` tokens that holds none."""
    longest = max(lengths)
    placement = Placement("paged", _layout(block_size), longest, longest)
    held = sum(placement.blocks_to_admit(length, length, 1) for length in lengths) * block_size
    return 1 - sum(lengths) / held


def _layout(block_size: int) -> KVLayout:
    return KVLayout.of(load("llama-2-7b"), "bf16", block_size)  # shares do not depend on the model


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace", help="an Azure CSV file, or anything that kvhouse replay takes")
    requests = read_trace(parser.parse_args().trace).requests
    lengths = [request.prompt_tokens + request.output_tokens for request in requests]
    print(f"{len(lengths):,} requests, {sum(lengths) / len(lengths):,.0f} tokens on average")
    for limit in LIMITS:
        print(f"contiguous-max {limit:>6,}: {reserved_share(lengths, limit):6.1%} holds tokens")
    for block_size in BLOCK_SIZES:
        print(f"paged, block {block_size:>4}: {paged_waste(lengths, block_size):6.1%} holds none")


if __name__ == "__main__":
    main()
