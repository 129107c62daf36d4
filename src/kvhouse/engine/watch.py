"""Where the time of a step goes, for whoever asks; for nobody it costs a call that does nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from kvhouse.core.step import StepPlan

#: ``attention`` and ``kv_writes`` are a kernel's, ``model`` is all else that the network computes,
#: ``sampling`` goes from logits to tokens, and ``scheduling`` is the rest of a step: plans,
#: packing, texts.
Part = Literal["model", "attention", "kv_writes", "sampling", "scheduling"]
PARTS: tuple[Part, ...] = ("model", "attention", "kv_writes", "sampling", "scheduling")


class Watch(Protocol):
    """What an executor and its kernel tell as they go from one part of a step to the next.

    Attributes:
        fine: Whether to tell attention and KV writes from the model too, which makes a step a
            little slower: what is computed as one is then computed part by part.
    """

    fine: bool

    def turn(self, part: Part) -> Part:
        """The time from here on is that of ``part``; gives the part before."""
        ...

    def begin(self, plan: StepPlan) -> None:
        """The step computes ``plan``."""
        ...


class _Unwatched:
    """Nobody asks."""

    fine = False

    def turn(self, part: Part) -> Part:
        return part

    def begin(self, plan: StepPlan) -> None:
        """Nothing to note."""


UNWATCHED: Watch = _Unwatched()


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """One step. Times are seconds.

    Attributes:
        plan: What it computed; None where it computed nothing.
        begun: When it began, by the watch's clock.
        ended: When it ended.
        parts: How long each part took; they sum to the whole.
        fine: Whether ``model`` is without ``attention`` and ``kv_writes``.
    """

    plan: StepPlan | None
    begun: float
    ended: float
    parts: dict[Part, float]
    fine: bool

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.ended - self.begun


class StepWatch:
    """Notes every step.

    Args:
        clock: Gives seconds.

    Attributes:
        fine: See ``Watch``; may be changed between steps.
        steps: In their order.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.fine = True
        self.steps: list[WatchedStep] = []
        self._clock = clock
        self._part: Part = "scheduling"
        self._since = 0.0
        self._parts: dict[Part, float] = {}
        self._plan: StepPlan | None = None

    def turn(self, part: Part) -> Part:
        """See ``Watch.turn``."""
        now, before = self._clock(), self._part
        self._parts[before] = self._parts.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    def begin(self, plan: StepPlan) -> None:
        """See ``Watch.begin``."""
        self._plan = plan

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is one step."""
        self._plan, self._part = None, "scheduling"
        self._parts = dict.fromkeys(PARTS, 0.0)
        begun = self._since = self._clock()
        yield
        self.turn("scheduling")
        step = WatchedStep(self._plan, begun, self._since, self._parts, self.fine)
        self.steps.append(step)
