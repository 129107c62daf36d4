"""Whoever wants to know what each step of an engine did."""

from __future__ import annotations

from collections.abc import Callable

from kvhouse.core.step import StepPlan, StepResult

#: Called with each step that was carried out and applied, by the thread that advances the engine.
#: It must be quick, and what it raises reaches whoever advances.
StepObserver = Callable[[StepPlan, StepResult], None]
