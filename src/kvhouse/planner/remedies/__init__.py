"""What can be done where memory is short: every remedy, measured, ranked, with its price."""

from kvhouse.planner.remedies.candidate import Excluded
from kvhouse.planner.remedies.offload import OffloadBreakEven, offload_break_even
from kvhouse.planner.remedies.ranking import Remedies, Remedy, remedies

__all__ = [
    "Excluded",
    "OffloadBreakEven",
    "Remedies",
    "Remedy",
    "offload_break_even",
    "remedies",
]
