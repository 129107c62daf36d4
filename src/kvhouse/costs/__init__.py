"""The least time that a step can take, from what it moves and computes."""

from kvhouse.costs.line import Line
from kvhouse.costs.roofline import Roofline, StepCost
from kvhouse.costs.sums import Sums

__all__ = ["Line", "Roofline", "StepCost", "Sums"]
