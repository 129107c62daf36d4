"""Closed forms over the layout: what fits, what it wastes, and how fast it can be read."""

from kvhouse.planner.budget import DEFAULT_UTILIZATION, Budget, kv_budget
from kvhouse.planner.concurrency import requests_that_fit
from kvhouse.planner.reference import kv_cache_gb
from kvhouse.planner.sizing import Fit, Plan, Speed, plan

__all__ = [
    "DEFAULT_UTILIZATION",
    "Budget",
    "Fit",
    "Plan",
    "Speed",
    "kv_budget",
    "kv_cache_gb",
    "plan",
    "requests_that_fit",
]
