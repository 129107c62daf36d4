"""The least time that a step can take, from what it moves and computes."""

from kvhouse.costs.roofline import Roofline, StepCost

__all__ = ["Roofline", "StepCost"]
