"""Replay: traffic through the real scheduler and allocator, on a virtual clock."""

from kvhouse.replayer.api import replay
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.traces import Trace, read_trace

__all__ = ["ReplayResult", "Scenario", "Trace", "read_trace", "replay"]
