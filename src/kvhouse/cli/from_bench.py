"""``kvhouse calibrate --from-bench``: a profile of a server that is seen from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvhouse.cli import engine_options
from kvhouse.cli.output import require_apart, warn, whole_file
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile

#: A mean error on what was left out of a fit that is worth a warning.
_POOR = 0.15


def calibrate_from_bench(
    model: str,
    files: Sequence[str],
    out: str | None,
    dtype: str,
    kv_format: str | None,
    block_size: int,
    token_budget: int,
) -> Profile:
    """Fit a profile to benches, and write it where that is asked.

    Args:
        model: The model that the server runs.
        files: What ``kvhouse bench --out`` wrote of it.
        out: Where the profile goes.
        dtype: What the server computes in, as far as is known.
        kv_format: How it stores keys and values; by default as ``dtype``.
        block_size: Tokens of its blocks.
        token_budget: Tokens that it computes in a step at most.

    Raises:
        KvhouseError: A file is none of a bench, they are of several servers, or what they saw
            does not tell the parts of a step apart.
    """
    if dtype not in engine_options.FORMAT_OF:
        raise KvhouseError(f"--dtype {dtype}: choose {', '.join(engine_options.FORMAT_OF)}")
    if token_budget < 1:
        raise KvhouseError(f"--token-budget {token_budget}: give at least 1")
    require_apart({"--out": out}, (model, *files))

    from kvhouse import spec
    from kvhouse.bench.stored import read_load
    from kvhouse.calibration.outside import profile_from
    from kvhouse.layout import KVLayout

    described = spec.load(model)
    layout = KVLayout.of(described, engine_options.format_of(kv_format, dtype), block_size)
    loads = [read_load(file) for file in files]
    with whole_file(out, "profile") as write:
        profile = profile_from(loads, described, layout, dtype, token_budget)
        if write:
            write(profile.encode())
    missed = profile.residuals.cross_validated_mean
    if missed > _POOR:
        warn(
            f"the times that were left out of the fit are missed by {missed:.0%} on average: the "
            "server was disturbed, or does not answer as a fit assumes (docs/verify.md)"
        )
    return profile
