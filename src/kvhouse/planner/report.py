"""Everything that can be asked of one case, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvhouse.core.policy import PAGED
from kvhouse.costs import Roofline
from kvhouse.planner.case import Case
from kvhouse.planner.sizing import Plan, plan_case

if TYPE_CHECKING:
    from kvhouse.planner.engines import EngineView
    from kvhouse.planner.grid import Grid
    from kvhouse.planner.remedies import Remedies
    from kvhouse.planner.traffic import Load, Traffic

#: Batches of the grid; its lengths are powers of two up to the longest request.
GRID_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SHORTEST = 512


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked beside the plan itself.

    Attributes:
        remedies: Whether to try every remedy.
        shared_tokens: Tokens of one prefix that all requests begin with; None for none known.
        hit_share: Share of prompt tokens that a cache which forgets nothing would have, as
            measured in a trace; only where ``shared_tokens`` is None.
        grid: Whether to give the decode floors over batches and lengths.
        traffic: Requests to find the batch of.
        efficiency: Share of the roofline that an engine is taken to reach under this traffic.
        engine: Another engine whose rules are to be applied; None for none.
        engine_options: Its options, as texts.
    """

    remedies: bool = True
    shared_tokens: int | None = None
    hit_share: float | None = None
    grid: bool = False
    traffic: Traffic | None = None
    efficiency: float = 1.0
    engine: str | None = None
    engine_options: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The plan of a case, and an answer to each question that was asked."""

    plan: Plan
    remedies: Remedies | None
    grid: Grid | None
    traffic: Load | None
    engine: EngineView | None

    def to_dict(self) -> dict[str, Any]:
        """The plan's keys, and one for each question: None where it was not asked."""
        return {
            **self.plan.to_dict(),
            "remedies": self.remedies.to_dict() if self.remedies else None,
            "grid": self.grid.to_dict() if self.grid else None,
            "traffic": self.traffic.to_dict() if self.traffic else None,
            "engine": self.engine.to_dict(self.plan.context) if self.engine else None,
        }


def report(case: Case, questions: Questions) -> Report:
    """Plan a case and answer the questions.

    Raises:
        KvhouseError: The case or a question is impossible; the message says which part.
    """
    if questions.shared_tokens is not None:
        replace(case, policy=PAGED, shared_tokens=questions.shared_tokens)  # is possible
    return Report(
        plan=plan_case(case),
        remedies=_remedies(case, questions) if questions.remedies else None,
        grid=_grid(case) if questions.grid else None,
        traffic=_traffic(case, questions) if questions.traffic else None,
        engine=_engine(case, questions),
    )


def _remedies(case: Case, questions: Questions) -> Remedies:
    from kvhouse.planner.remedies import remedies

    lengths: tuple[int, ...] = ()
    if questions.traffic:
        lengths = tuple(prompt + output for prompt, output in questions.traffic.lengths)
    share = questions.hit_share if questions.shared_tokens is None else None
    return remedies(case, shared_tokens=questions.shared_tokens, hit_share=share, lengths=lengths)


def _grid(case: Case) -> Grid:
    from kvhouse.planner.grid import grid

    lengths = [_SHORTEST]
    while lengths[-1] * 2 <= case.max_length:
        lengths.append(lengths[-1] * 2)
    return grid(
        case.rank(),
        case.layout(),
        case.device,
        GRID_BATCHES,
        [length for length in lengths if length <= case.max_length] or [case.max_length],
        kv_memory=case.budget().kv,
        max_length=case.max_length,
        policy=case.policy,
        weight_dtype=case.weight_dtype,
        token_budget=case.token_budget,
        watermark=case.watermark,
    )


def _traffic(case: Case, questions: Questions) -> Load | None:
    from kvhouse.planner.traffic import load

    if questions.traffic is None:
        return None
    roofline = Roofline(case.rank(), case.layout(), case.device, case.weight_dtype)
    return load(
        questions.traffic,
        roofline,
        case.budget().kv,
        max_length=case.max_length,
        token_budget=case.token_budget,
        watermark=case.watermark,
        efficiency=questions.efficiency,
    )


def _engine(case: Case, questions: Questions) -> EngineView | None:
    if questions.engine is None:
        return None
    from kvhouse.planner.engines.applied import applied

    return applied(questions.engine, case, questions.engine_options or {})
