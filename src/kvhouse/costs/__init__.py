"""How long a step takes: at least, from what it moves and computes, or at measured rates."""

from kvhouse.costs.fitted import FittedSteps, StepParts, StepRates
from kvhouse.costs.line import Line
from kvhouse.costs.roofline import Roofline, StepCost
from kvhouse.costs.sums import Sums

__all__ = ["FittedSteps", "Line", "Roofline", "StepCost", "StepParts", "StepRates", "Sums"]
