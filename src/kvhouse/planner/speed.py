"""The floors of decode and prefill, and what bounds them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from kvhouse.costs import Roofline

#: Batches and prompts beyond this are not looked at for a change of what bounds a step.
_MOST = 2**24


@dataclass(frozen=True, slots=True)
class Speed:
    """The floor of one decode step. A bound by the device's figures, not a forecast.

    Attributes:
        batch: Requests that each get one token.
        kv_bytes: Keys, values and states read.
        weight_bytes: Weights read.
        kv_seconds: Time to read the keys and values alone.
        seconds: Time of the step: all bytes or all FLOPs, whichever takes longer; under tensor
            parallelism also the sums over the ranks.
        kv_tokens_per_second: Ceiling by the keys and values alone; None where none are read.
        tokens_per_second: Ceiling of the whole step, all requests together.
        request_tokens_per_second: The same for one of the requests.
        bound: ``bandwidth`` or ``compute``.
    """

    batch: int
    kv_bytes: int
    weight_bytes: int
    kv_seconds: float
    seconds: float
    kv_tokens_per_second: float | None
    tokens_per_second: float
    request_tokens_per_second: float
    bound: str


def decode_speed(roofline: Roofline, batch: int, context: int, link_seconds: float = 0) -> Speed:
    """The floor of decoding ``batch`` requests that each have ``context`` tokens in the pool.

    Args:
        roofline: The model, or one rank of it, on its device.
        batch: Requests.
        context: Tokens of each in the pool.
        link_seconds: What ranks spend beside it on their sums.
    """
    cost = roofline.decode_floor(batch, context)
    seconds = cost.seconds + link_seconds
    kv_seconds = cost.kv_read_bytes / roofline.device.bandwidth
    return Speed(
        batch=batch,
        kv_bytes=cost.kv_read_bytes,
        weight_bytes=cost.weight_bytes,
        kv_seconds=kv_seconds,
        seconds=seconds,
        kv_tokens_per_second=batch / kv_seconds if kv_seconds else None,
        tokens_per_second=batch / seconds,
        request_tokens_per_second=1 / seconds,
        bound=cost.bound,
    )


def compute_bound_batch(roofline: Roofline, context: int) -> int | None:
    """The smallest batch whose decode step is bound by compute; None where no batch is.

    With the batch grow the FLOPs and the KV that is read, but not the weights, so a step that is
    bound by compute stays so.
    """
    return _first(lambda batch: roofline.decode_floor(batch, context).bound == "compute")


def compute_bound_prompt(roofline: Roofline) -> int | None:
    """The shortest prompt whose prefill, alone in its step, is bound by compute."""
    return _first(lambda tokens: roofline.prefill(tokens).bound == "compute")


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest number from which on ``holds`` is true."""
    if not holds(_MOST):
        return None
    return bisect_left(range(1, _MOST), True, key=holds) + 1
