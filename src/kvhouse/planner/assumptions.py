"""Under which assumptions does a claim of "from so many to so many requests" hold?"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from kvhouse.core.policy import CONTIGUOUS_MAX, PAGED
from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError
from kvhouse.formats import FORMATS
from kvhouse.planner.budget import kv_budget
from kvhouse.planner.case import Case


@dataclass(frozen=True, slots=True)
class Assumption:
    """One set of assumptions, and what fits under it.

    Attributes:
        weight_dtype: How the weights are stored.
        kv_format: How keys and values are stored.
        utilization: Share of the memory that the engine may use.
        weight_bytes: Bytes of the weights.
        kv_bytes: What they leave for keys and values; 0 for nothing.
        missing_bytes: What the weights lack to fit; 0 where they do.
        contiguous: Requests that fit if each reserves ``max_length``.
        paged: Requests that fit paged, each holding ``context`` tokens.
        holds: Whether ``contiguous`` is what was claimed and ``paged`` at least that.
        longest_mean: Mean length in tokens up to which the claimed paged requests fit; None where
            the claim does not hold.
        speedup: Ceiling of decoding the claimed paged requests over that of the claimed
            contiguous ones, at the mean length: modelled; None where the claim does not hold.
    """

    weight_dtype: str
    kv_format: str
    utilization: float
    weight_bytes: int
    kv_bytes: int
    missing_bytes: int
    contiguous: int
    paged: int
    holds: bool
    longest_mean: int | None
    speedup: float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, and every set of assumptions that was tried.

    Attributes:
        model: The model.
        memory_bytes: Memory of the device.
        context: Tokens that a paged request holds on average.
        max_length: Tokens that a contiguous one reserves.
        contiguous: Requests claimed without paging.
        paged: Requests claimed with it.
        tried: Every set, those under which the claim holds first, then the nearest.
    """

    model: str
    memory_bytes: int
    context: int
    max_length: int
    contiguous: int
    paged: int
    tried: tuple[Assumption, ...]

    @property
    def holding(self) -> tuple[Assumption, ...]:
        """The sets under which the claim holds."""
        return tuple(one for one in self.tried if one.holds)

    @property
    def nearest(self) -> Assumption:
        """The set that comes nearest, or one that holds."""
        return self.tried[0]

    def to_dict(self) -> dict[str, Any]:
        """The same keys, as plain values."""
        return asdict(self)


def assumptions(
    case: Case,
    contiguous: int,
    paged: int,
    *,
    weight_dtypes: Sequence[str] = ("float16", "int8", "int4"),
    kv_formats: Iterable[str] = tuple(FORMATS),
    utilizations: Sequence[float] = (0.9, 0.95, 1.0),
) -> Claim:
    """Search for the assumptions under which paging takes a device from one count to another.

    Args:
        case: The model, its device, the requests' mean length as ``context``, and ``max_length``;
            its format, weights, policy and utilization are replaced.
        contiguous: Requests that are said to fit when each reserves ``max_length``.
        paged: Requests that are said to fit, at least, with paging.
        weight_dtypes: How the weights may be stored.
        kv_formats: How keys and values may be stored.
        utilizations: Shares of the memory that the engine may use.

    Raises:
        KvhouseError: Nothing to try, a claim below 1 request, or an impossible option.
    """
    if min(contiguous, paged) < 1:
        raise KvhouseError(f"a claim of {contiguous} -> {paged} requests: give at least 1 each")
    sets = list(product(weight_dtypes, kv_formats, utilizations))
    if not sets:
        raise KvhouseError("no assumptions to try: give weight dtypes, KV formats, utilizations")
    tried = [_try(case, one, contiguous, paged) for one in sets]
    tried.sort(
        key=lambda one: (not one.holds, abs(one.contiguous - contiguous), -min(one.paged, paged))
    )
    return Claim(
        case.spec.name,
        case.device.usable_bytes,
        case.context,
        case.max_length,
        contiguous,
        paged,
        tuple(tried),
    )


def _try(case: Case, one: tuple[str, str, float], contiguous: int, paged: int) -> Assumption:
    weight_dtype, kv_format, utilization = one
    set_up = replace(case, weight_dtype=weight_dtype, kv_format=kv_format, utilization=utilization)
    budget = kv_budget(set_up.rank(), set_up.device, weight_dtype, utilization, set_up.kv_memory)
    counts = [
        replace(set_up, policy=policy).outcome().requests for policy in (CONTIGUOUS_MAX, PAGED)
    ]
    holds = counts[0] == contiguous and counts[1] >= paged
    return Assumption(
        weight_dtype=weight_dtype,
        kv_format=kv_format,
        utilization=utilization,
        weight_bytes=budget.weights,
        kv_bytes=budget.kv,
        missing_bytes=budget.missing,
        contiguous=counts[0],
        paged=counts[1],
        holds=holds,
        longest_mean=_longest_mean(set_up, paged) if holds else None,
        speedup=_speedup(set_up, contiguous, paged) if holds else None,
    )


def _longest_mean(case: Case, requests: int) -> int:
    """The longest context at which so many requests fit paged; at ``case.context`` they do."""

    def too_long(context: int) -> bool:
        return replace(case, policy=PAGED, context=context).outcome().requests < requests

    lengths = range(case.context, case.max_length + 1)
    return lengths[bisect_left(lengths, True, key=too_long) - 1]


def _speedup(case: Case, before: int, after: int) -> float:
    """Ratio of the token rates' ceilings at two batches."""
    roofline = Roofline(case.rank(), case.layout(), case.device, case.weight_dtype)
    slow, fast = (
        batch / roofline.decode_floor(batch, case.context).seconds for batch in (before, after)
    )
    return fast / slow
