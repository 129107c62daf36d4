"""From traffic to the batch that it makes, by Little's law."""

from kvhouse.planner.traffic.load import Load, PolicyLoad, load
from kvhouse.planner.traffic.sample import Percentiles, Traffic
from kvhouse.planner.traffic.stay import Stay

__all__ = ["Load", "Percentiles", "PolicyLoad", "Stay", "Traffic", "load"]
