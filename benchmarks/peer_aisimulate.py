"""Runs in AISimulate's own virtual environment: replays a trace with it, and says how long it took.

Reads a job from standard input and writes JSON to standard output. The seconds are those that
AISimulate itself reports for its replay, its trace read and its model prepared; the CPU seconds are
its process's for all of that, but not for starting up.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

from aisimulate import CorePredictionConfig, EngineReplayRunnerFactory
from aisimulate.predict import run_prediction


def main() -> None:
    """Run the job."""
    config = CorePredictionConfig.model_validate(json.load(sys.stdin)["config"])
    cpu = time.process_time()
    result = run_prediction(config, stack="engine", runner_factory=EngineReplayRunnerFactory())
    found = {
        "version": version("aisimulate"),
        "seconds": result.native["wall_time_ms"] / 1e3,
        "cpu_seconds": time.process_time() - cpu,
        "finished": result.native["completed_requests"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
