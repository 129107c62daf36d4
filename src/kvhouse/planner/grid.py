"""Decode floors over batches and lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, DEFAULT_WATERMARK, PAGED, Placement
from kvhouse.costs import Roofline, StepCost
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.planner.concurrency import requests_that_fit
from kvhouse.spec.model import ModelSpec

#: Points of the largest grid.
MOST_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Grid:
    """Floors of decode steps; a row for each length, and in it a value for each batch.

    Attributes:
        lengths: Tokens that each request has in the pool before the step.
        batches: Requests that each get one token.
        policy: The placement policy that ``requests`` and ``fits`` are for.
        requests: For each length, how many requests of it fit; exact.
        fits: Whether the batch does.
        step_bytes: Bytes that the step moves: weights, and KV read and written; exact.
        seconds: Floor of the step.
        tokens_per_second: Ceiling of all requests together.
        compute_bound: Whether compute sets the floor, and not bandwidth.
    """

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    policy: str
    requests: tuple[int, ...]
    fits: tuple[tuple[bool, ...], ...]
    step_bytes: tuple[tuple[int, ...], ...]
    seconds: tuple[tuple[float, ...], ...]
    tokens_per_second: tuple[tuple[float, ...], ...]
    compute_bound: tuple[tuple[bool, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        """The same keys, as plain values."""
        return asdict(self)


def grid(
    spec: ModelSpec,
    layout: KVLayout,
    device: Device,
    batches: Sequence[int],
    lengths: Sequence[int],
    *,
    kv_memory: int,
    max_length: int,
    policy: str = PAGED,
    weight_dtype: str | None = None,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    watermark: float = DEFAULT_WATERMARK,
) -> Grid:
    """The floor of a decode step at every batch and length.

    What a request adds to a step depends on its length alone, so a step of many is that times
    their number, and the weights: the same figures as ``Roofline.decode_floor``, without asking
    it at every point.

    Args:
        spec: The model.
        layout: How its KV lies in memory.
        device: Where it runs.
        batches: Requests, at least 1 each.
        lengths: Tokens of each request, 1 to ``max_length``.
        kv_memory: Bytes for keys and values.
        max_length: Longest request allowed.
        policy: How memory is handed out.
        weight_dtype: How the weights are stored; by default as published.
        token_budget: The most tokens that one step computes for a request.
        watermark: Share of the pool that paged admissions keep free.

    Raises:
        KvhouseError: A batch or length is out of range, or the grid has over a million points.
    """
    _check(batches, lengths, max_length)
    roofline = Roofline(spec, layout, device, weight_dtype)
    # The weights that a step reads do not depend on the lengths, nor the products with them.
    bases = [roofline.decode_floor(batch, lengths[0]) for batch in batches] if lengths else []
    placement = Placement(policy, layout, max_length, token_budget)
    rows = [_row(roofline, bases, batches, length) for length in lengths]
    pools = [layout.pool_in(kv_memory, length, token_budget) for length in lengths]
    requests = tuple(
        requests_that_fit(placement, pool, length, 1, watermark)
        for pool, length in zip(pools, lengths, strict=True)
    )
    return Grid(
        lengths=tuple(lengths),
        batches=tuple(batches),
        policy=policy,
        requests=requests,
        fits=tuple(tuple(batch <= most for batch in batches) for most in requests),
        step_bytes=tuple(row.step_bytes for row in rows),
        seconds=tuple(row.seconds for row in rows),
        tokens_per_second=tuple(
            tuple(batch / time for batch, time in zip(batches, row.seconds, strict=True))
            for row in rows
        ),
        compute_bound=tuple(row.compute_bound for row in rows),
    )


class _Row(NamedTuple):
    """One length, at every batch."""

    step_bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    compute_bound: tuple[bool, ...]


def _row(
    roofline: Roofline, bases: Sequence[StepCost], batches: Sequence[int], length: int
) -> _Row:
    """Every batch at one length; ``bases`` are the steps of the same batches at some length."""
    one = roofline.decode_floor(1, length)
    kv = one.kv_read_bytes + one.kv_written_bytes
    pairs = list(zip(bases, batches, strict=True))
    moved = tuple(base.weight_bytes + batch * kv for base, batch in pairs)
    reading = [size / roofline.device.bandwidth for size in moved]
    rate = roofline.flop_rate or math.inf
    computing = [(base.matmul_flops + batch * one.attention_flops) / rate for base, batch in pairs]
    return _Row(
        moved,
        tuple(map(max, reading, computing)),
        tuple(c > r for c, r in zip(computing, reading, strict=True)),
    )


def _check(batches: Sequence[int], lengths: Sequence[int], max_length: int) -> None:
    if len(batches) * len(lengths) > MOST_POINTS:
        raise KvhouseError(
            f"a grid of {len(batches):,} batches and {len(lengths):,} lengths has over "
            f"{MOST_POINTS:,} points: give fewer"
        )
    if any(batch < 1 for batch in batches):
        raise KvhouseError(f"batch {min(batches)}: a step has at least 1 request")
    if any(not 1 <= length <= max_length for length in lengths):
        wrong = next(length for length in lengths if not 1 <= length <= max_length)
        raise KvhouseError(f"length {wrong}: must lie between 1 and max_length {max_length}")
