"""The parts of a profile's file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from kvhouse.engine.fast.paths import Paths

_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: Characters of a text.
MOST_TEXT = 400
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Count = Annotated[int, Field(ge=1, le=2**50)]


class Strict(BaseModel):
    """Refuses what is not described."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Machine(Strict):
    """Where it was measured: the processor, the threads, and memory as ``device local`` has it."""

    processor: Text
    threads: Count
    memory_bytes: Count
    bandwidth: Annotated[float, Field(gt=0, le=1e20)]
    flops: Annotated[float, Field(gt=0, le=1e20)]


class Rates(Strict):
    """See ``costs.StepRates``."""

    knots: Annotated[tuple[Count, ...], Field(min_length=1, max_length=1000)]
    knot_seconds: Annotated[tuple[_Seconds, ...], Field(max_length=1000)]
    sampling: _Seconds
    sample: _Seconds
    row: _Seconds
    decode_byte: _Seconds
    chunk_byte: _Seconds
    chunk_flop: _Seconds


class Fit(Strict):
    """See ``fit.Residuals``."""

    steps: Count
    mean: Share
    worst: Share
    cross_validated_mean: Share
    cross_validated_p90: Share


class Ways(Strict):
    """Which way a model was computed; see ``engine.fast.paths.Paths``."""

    blocks: Annotated[int, Field(ge=0, le=2**50)]
    fast: Annotated[int, Field(ge=0, le=2**50)]
    compiled: bool
    reason: Text

    @classmethod
    def of(cls, paths: Paths) -> Ways:
        """Of a model that was just computed."""
        found = paths.to_dict()
        return cls(**found | {"reason": found["reason"][:MOST_TEXT]})

    @property
    def words(self) -> str:
        """In words."""
        if not self.fast:
            return "as transformers does"
        return "by compiled code" if self.compiled else "by the fast path in torch"
