"""How many requests a pool admits under each placement policy, and what each wastes."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.core.policy import POLICIES, Placement
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.planner.concurrency import requests_that_fit
from kvhouse.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Shape:
    """Identical requests, as a closed form wants them.

    Attributes:
        tokens: Tokens that each request holds.
        new_tokens: How many of them it generated.
        max_length: Longest request allowed.
        in_flight: The most tokens that one step computes for a request.
        watermark: Share of the pool that paged admissions keep free.
    """

    tokens: int
    new_tokens: int
    max_length: int
    in_flight: int
    watermark: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What a placement policy makes of the pool, for identical requests.

    A request's held bytes are what its tokens need and three kinds of waste.

    Attributes:
        policy: One of ``core.policy.POLICIES``.
        requests: Admitted by memory before its first refusal. Exact: the allocator's own number.
        held_bytes: Bytes that one request holds.
        token_bytes: Bytes of them that the model needs for its tokens, states included.
        reservation_bytes: Bytes held for tokens that the request does not have.
        padding_bytes: Bytes of its blocks that no layer fills.
        rounding_bytes: The rest: tails of blocks, and room for the tokens of one step.
        idle_bytes: Pool bytes that hold nothing needed once these requests are in.
    """

    policy: str
    requests: int
    held_bytes: int
    token_bytes: int
    reservation_bytes: int
    padding_bytes: int
    rounding_bytes: int
    idle_bytes: int


def fits(spec: ModelSpec, layout: KVLayout, size: PoolSize, shape: Shape) -> tuple[Fit, ...]:
    """One for each placement policy."""
    return tuple(_fit(policy, spec, layout, size, shape) for policy in POLICIES)


def _fit(policy: str, spec: ModelSpec, layout: KVLayout, size: PoolSize, shape: Shape) -> Fit:
    placement = Placement(policy, layout, shape.max_length, shape.in_flight)
    prompt = shape.tokens - shape.new_tokens
    requests = requests_that_fit(placement, size, shape.tokens, shape.new_tokens, shape.watermark)
    room = placement.tokens_to_admit(shape.tokens, prompt, shape.new_tokens)
    held = layout.held_bytes(room, shape.in_flight)
    own = layout.held_bytes(min(room, shape.tokens), shape.in_flight)
    padding = layout.padding_bytes(min(room, shape.tokens), shape.in_flight)
    needed = spec.kv_bytes(
        shape.tokens, layout.format, dtype=layout.dtype, encoder_tokens=layout.other_tokens
    )
    return Fit(
        policy=policy,
        requests=requests,
        held_bytes=held,
        token_bytes=needed,
        reservation_bytes=held - own,
        padding_bytes=padding,
        rounding_bytes=own - padding - needed,
        idle_bytes=layout.pool_bytes(size) - requests * needed,
    )
