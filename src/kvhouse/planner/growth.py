"""How the cache of one request grows with its tokens, and when it passes the weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from kvhouse.layout import KVLayout
from kvhouse.planner.sizing import crossover_length
from kvhouse.spec.model import ModelSpec

#: Equal parts of the length after each of which the cache is shown.
_PARTS = 8
#: Most batches that are shown.
_BATCHES = 8
#: Batches go on to so many times the one that passes the weights.
_BEYOND = 4


@dataclass(frozen=True, slots=True)
class Point:
    """One request at one length; exact.

    Attributes:
        tokens: Its tokens.
        needed_bytes: What the model needs of them.
        held_bytes: What a paged pool holds: whole blocks, and a slot where there is a state.
    """

    tokens: int
    needed_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of full length, and what all of them need, in bytes; exact."""

    requests: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """How a model's cache grows.

    Attributes:
        model: The model.
        kv_format: How keys and values are stored.
        block_size: Tokens to a block.
        tokens: The longest request that is shown.
        bytes_per_token: What one more token takes while no layer lets an old one go.
        weight_bytes: The weights, as they are published.
        weights_basis: ``exact``, ``estimated`` or ``stored``.
        points: The first tokens and blocks, then equal parts of ``tokens``.
        batches: Powers of two, and the first batch whose KV outweighs the weights.
        crossover_batch: That batch.
        crossover_length: Tokens from which one request outweighs the weights; None where it does
            not within ``tokens``.
    """

    model: str
    kv_format: str
    block_size: int
    tokens: int
    bytes_per_token: int
    weight_bytes: int
    weights_basis: str
    points: tuple[Point, ...]
    batches: tuple[Batch, ...]
    crossover_batch: int
    crossover_length: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; docs/json.md describes the keys."""
        return asdict(self)


def growth(model: ModelSpec, kv_format: str = "fp16", tokens: int | None = None) -> Growth:
    """Follow one request of ``model`` from its first token to its last.

    Args:
        model: The model.
        kv_format: How keys and values are stored.
        tokens: The last length; by default the model's limit.

    Raises:
        KvhouseError: No such format, a length out of the model's range, or unknown weights.
    """
    longest, layout = model.length_limit(tokens), KVLayout.of(model, kv_format)
    weights = model.weight_bytes()
    lengths = {1, 2, layout.block_size, layout.block_size + 1}
    lengths |= {longest * part // _PARTS for part in range(1, _PARTS + 1)}
    shown = sorted(length for length in lengths if 1 <= length <= longest)
    points = tuple(_point(model, layout, length) for length in shown)
    each = points[-1].needed_bytes
    first = weights // each + 1
    return Growth(
        model=model.name,
        kv_format=layout.format.name,
        block_size=layout.block_size,
        tokens=longest,
        bytes_per_token=layout.bytes_per_token,
        weight_bytes=weights,
        weights_basis=model.weight_bytes_basis(),
        points=points,
        batches=tuple(Batch(requests, requests * each) for requests in _batches(first)),
        crossover_batch=first,
        crossover_length=crossover_length(model, layout, weights, longest),
    )


def _point(model: ModelSpec, layout: KVLayout, tokens: int) -> Point:
    needed = model.kv_bytes(tokens, layout.format, dtype=layout.dtype)
    return Point(tokens, needed, layout.held_bytes(tokens, 1))


def _batches(first: int) -> list[int]:
    """Powers of two around ``first``, and itself."""
    powers = [*takewhile(lambda power: power < _BEYOND * first, (1 << n for n in range(64)))]
    powers.append(2 * powers[-1])
    return sorted({*powers[-_BATCHES:], first})
