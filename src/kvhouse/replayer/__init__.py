"""Replay: traffic through the real scheduler and allocator, on a virtual clock."""

from kvhouse.replayer.api import replay
from kvhouse.replayer.results import ReplayResult
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.tiering import Tiering
from kvhouse.replayer.traces import Trace, TraceRequest, read_trace

__all__ = [
    "SLO",
    "ReplayResult",
    "Scenario",
    "Setup",
    "Stop",
    "Tiering",
    "Trace",
    "TraceRequest",
    "read_trace",
    "replay",
]
