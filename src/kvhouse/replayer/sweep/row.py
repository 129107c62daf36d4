"""What is kept of one cell: its place in the grid, and the main figures of its replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from kvhouse.replayer.results import Distribution, ReplayResult

#: ``impossible``: it can never be replayed, and ``reason`` says why. ``failed``: kvhouse or the
#: machine could not do it; another attempt may.
Status = Literal["done", "impossible", "failed"]

_SPANS = ("queue_seconds", "first_token_seconds", "per_token_seconds", "latency_seconds")
_POINTS = ("mean", "p50", "p90", "p99")
#: Figures that have the same name in a result.
_SAME = (
    "submitted", "finished", "prompt_tokens", "output_tokens", "computed_tokens", "reused_tokens",
    "recomputed_tokens", "loaded_tokens", "preemptions", "steps", "makespan_seconds",
    "output_tokens_per_second", "requests_per_second",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One cell. Figures are those of ``ReplayResult``, and None where there is no replay.

    Attributes:
        key: A hash of everything that decides the figures.
        rate: Arrivals per second; None where all requests arrive at once.
        status: What became of it.
        reason: Why there are no figures; empty where there are.
        missing_bytes: What the device lacks for the weights beside a pool that was given.
    """

    key: str
    model: str
    device: str
    policy: str
    kv_format: str
    block_size: int
    rate: float | None
    status: Status
    reason: str = ""
    missing_bytes: int | None = None
    pool_bytes: int | None = None
    pool_blocks: int | None = None
    submitted: int | None = None
    finished: int | None = None
    rejected: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    computed_tokens: int | None = None
    reused_tokens: int | None = None
    recomputed_tokens: int | None = None
    loaded_tokens: int | None = None
    preemptions: int | None = None
    steps: int | None = None
    makespan_seconds: float | None = None
    output_tokens_per_second: float | None = None
    requests_per_second: float | None = None
    running_peak: int | None = None
    running_mean: float | None = None
    waiting_mean: float | None = None
    queue_seconds_mean: float | None = None
    queue_seconds_p50: float | None = None
    queue_seconds_p90: float | None = None
    queue_seconds_p99: float | None = None
    first_token_seconds_mean: float | None = None
    first_token_seconds_p50: float | None = None
    first_token_seconds_p90: float | None = None
    first_token_seconds_p99: float | None = None
    per_token_seconds_mean: float | None = None
    per_token_seconds_p50: float | None = None
    per_token_seconds_p90: float | None = None
    per_token_seconds_p99: float | None = None
    latency_seconds_mean: float | None = None
    latency_seconds_p50: float | None = None
    latency_seconds_p90: float | None = None
    latency_seconds_p99: float | None = None
    goodput_requests: int | None = None
    goodput_share: float | None = None
    goodput_requests_per_second: float | None = None
    prefix_token_share: float | None = None
    used_share: float | None = None
    reserved_share: float | None = None
    internal_share: float | None = None
    external_share: float | None = None
    free_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same keys, as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Row:
        """A row from the plain values of a file.

        Raises:
            TypeError: They are not those of a row.
        """
        row = cls(**values)
        wrong = [name for name, kind in _KINDS.items() if not _fits(getattr(row, name), kind)]
        if wrong:
            raise TypeError(f"{', '.join(wrong)} of another type")
        return row

    @classmethod
    def columns(cls) -> dict[str, type]:
        """Every column's name and type, which is int, float or str, in order."""
        kinds = {"int": int, "float": float, "str": str, "Status": str}
        return {name: kinds[kind.removesuffix(" | None")] for name, kind in _KINDS.items()}


#: Every column, and its type as it is written above.
_KINDS = {field.name: str(field.type) for field in fields(Row)}


def _fits(value: object, kind: str) -> bool:
    """Whether a column of this type may have the value."""
    if value is None:
        return kind.endswith(" | None")
    match kind.removesuffix(" | None"):
        case "int":
            return type(value) is int and -(2**63) <= value < 2**63
        case "float":
            return type(value) is int or (isinstance(value, float) and math.isfinite(value))
        case "str":
            return isinstance(value, str)
    return value in get_args(Status)


def figures_of(result: ReplayResult, missing_bytes: int) -> dict[str, Any]:
    """The figures of a row."""
    share, goodput = result.ledger.mean_share, result.goodput
    return {
        **{name: getattr(result, name) for name in _SAME},
        "missing_bytes": missing_bytes,
        "pool_bytes": result.pool.bytes,
        "pool_blocks": result.pool.blocks,
        "rejected": len(result.rejections),
        "running_peak": result.running.peak,
        "running_mean": result.running.mean,
        "waiting_mean": result.waiting.mean,
        **{key: value for name in _SPANS for key, value in _span(name, getattr(result, name))},
        "goodput_requests": goodput.requests if goodput else None,
        "goodput_share": goodput.share if goodput else None,
        "goodput_requests_per_second": goodput.requests_per_second if goodput else None,
        "prefix_token_share": result.prefix.token_share if result.prefix else None,
        "used_share": share["used"] + share["shared"],
        "reserved_share": share["reserved"],
        "internal_share": share["internal"],
        "external_share": share["external"],
        "free_share": share["free"] + share["cached"],
    }


def _span(name: str, values: Distribution | None) -> list[tuple[str, float | None]]:
    return [(f"{name}_{p}", getattr(values, p) if values else None) for p in _POINTS]
