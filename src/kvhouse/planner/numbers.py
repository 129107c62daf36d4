"""One model, three right answers: what it needs, what a paged pool holds, what slots take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvhouse.layout import KVLayout
from kvhouse.spec.layers import Layer, describe
from kvhouse.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class KindBytes:
    """What the layers of one kind and shape keep of a request; exact.

    Attributes:
        kind: The layers' kind in words.
        layers: How many there are.
        token_bytes: Bytes that one kept token takes in all of them.
        state_bytes: Bytes that do not grow with the request, in all of them.
        kept_tokens: Tokens kept of a request of the asked length.
        logical_bytes: What the model needs for a request of that length.
        static_bytes: What it needs for the longest request allowed, which an engine with one
            static slot for each request sets aside whatever the length.
        formula: How ``logical_bytes`` is found.
    """

    kind: str
    layers: int
    token_bytes: int
    state_bytes: int
    kept_tokens: int
    logical_bytes: int
    static_bytes: int
    formula: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """Bytes of one request by three rules.

    Attributes:
        tokens: Tokens of the request.
        logical: What the model needs.
        reserved: What kvhouse's paged pool holds for it: whole blocks, padding, a slot for the
            state, and room for the tokens of one step where a window moves.
        static: What one slot for the longest request takes.
        formula: How ``reserved`` is found.
    """

    tokens: int
    logical: int
    reserved: int
    static: int
    formula: str


def kinds(spec: ModelSpec, layout: KVLayout, tokens: int, max_length: int) -> tuple[KindBytes, ...]:
    """What each kind of layer keeps, in the order in which the kinds first occur."""
    counts: dict[Layer, int] = {}
    for layer in spec.layers:
        for part in layer.parts:
            counts[part] = counts.get(part, 0) + 1
    found = (_kind(part, count, layout, tokens, max_length) for part, count in counts.items())
    return tuple(kind for kind in found if kind.token_bytes or kind.state_bytes)


def numbers(layout: KVLayout, by_kind: Iterable[KindBytes], tokens: int, in_flight: int) -> Numbers:
    """The three numbers, from what the kinds keep."""
    by_kind = tuple(by_kind)
    blocks = layout.blocks_for(tokens, in_flight)
    slot = f" + slot of {layout.slot_bytes:,} B" if layout.slot_bytes else ""
    return Numbers(
        tokens=tokens,
        logical=sum(kind.logical_bytes for kind in by_kind),
        reserved=layout.held_bytes(tokens, in_flight),
        static=sum(kind.static_bytes for kind in by_kind),
        formula=f"{blocks:,} blocks x {layout.block_bytes:,} B{slot}",
    )


def _kind(part: Layer, count: int, layout: KVLayout, tokens: int, longest: int) -> KindBytes:
    token_bytes = count * part.token_bytes(layout.format, layout.dtype)
    state_bytes = count * part.state_bytes(layout.dtype)
    across = layout.other_tokens if part.across else None
    kept = part.kept_tokens(tokens if across is None else across)
    most = part.kept_tokens(longest if across is None else across)
    return KindBytes(
        kind=describe(part),
        layers=count,
        token_bytes=token_bytes,
        state_bytes=state_bytes,
        kept_tokens=kept,
        logical_bytes=kept * token_bytes + state_bytes,
        static_bytes=most * token_bytes + state_bytes,
        formula=_formula(part, count, layout, kept),
    )


def _formula(part: Layer, count: int, layout: KVLayout, kept: int) -> str:
    per_token = part.token_bytes(layout.format, layout.dtype)
    terms = []
    if per_token:
        what = "tokens" if part.stride == 1 else f"entries of {part.stride} tokens"
        terms.append(f"{count} layers x {kept:,} {what} x {per_token:,} B")
    if state := part.state_bytes(layout.dtype):
        terms.append(f"{count} layers x {state:,} B of state")
    return " + ".join(terms)
