"""Public engine logs as cases: each is recomputed from its config, flags and memory.

A case is one JSON object: the engine and its version, the model's config numbers, the flags, and
what the log ``reported``. Nothing that was reported is taken as the answer: numbers are either
inputs (memory, blocks) or outputs, and outputs are derived and then compared within the rounding
of print. What a case does not state is tried at the engine's default first; where only another
value fits, the verdict names it.
"""

from kvhouse.planner.engines.cases.judge import Verdict, judge, read_cases, summary

__all__ = ["Verdict", "judge", "read_cases", "summary"]
