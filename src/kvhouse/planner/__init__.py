"""Closed forms over the layout: what fits, what it wastes, and how fast it can be read."""

from kvhouse.planner.budget import DEFAULT_UTILIZATION, Budget, kv_budget
from kvhouse.planner.concurrency import requests_that_fit
from kvhouse.planner.fit import Fit
from kvhouse.planner.numbers import KindBytes, Numbers
from kvhouse.planner.reference import kv_cache_gb
from kvhouse.planner.sizing import Plan, plan
from kvhouse.planner.speed import Speed

__all__ = [
    "DEFAULT_UTILIZATION",
    "Budget",
    "Fit",
    "KindBytes",
    "Numbers",
    "Plan",
    "Speed",
    "kv_budget",
    "kv_cache_gb",
    "plan",
    "requests_that_fit",
]
