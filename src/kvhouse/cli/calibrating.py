"""What ``kvhouse calibrate`` and ``kvhouse verify`` share: step times measured and fitted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvhouse.cli.output import warn
from kvhouse.cli.progress import interruptible, progress
from kvhouse.units import parse_bytes

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile
    from kvhouse.engine import EngineConfig
    from kvhouse.engine.load import LoadedModel

#: Seconds that steps are timed where none are asked for.
SECONDS = 110.0
#: Memory for keys and values where none is asked for: large enough for many and long requests.
MEMORY = "2GiB"


def widened(config: EngineConfig) -> EngineConfig:
    """The engine whose profile is kept for any traffic: it must not stop at one's limits."""
    from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET
    from kvhouse.core.scheduler import DEFAULT_MAX_RUNNING

    return replace(
        config,
        kv_memory=max(config.kv_memory, parse_bytes(MEMORY)),
        token_budget=DEFAULT_TOKEN_BUDGET,
        max_running=DEFAULT_MAX_RUNNING,
    )


def calibrated(
    loaded: LoadedModel, config: EngineConfig, seconds: float, *, as_json: bool
) -> Profile:
    """Time the engine's steps and fit a profile; Ctrl-C makes it one of what was timed till then.

    Args:
        loaded: The model.
        config: How the engine keeps KV and forms its steps.
        seconds: How long steps may be timed.
        as_json: Whether stdout is for JSON alone.

    Raises:
        KvhouseError: The pool cannot be built, or no step could be timed.
    """
    from kvhouse.calibration.calibrate import profile_of
    from kvhouse.calibration.measure import ROUNDS, Bench
    from kvhouse.devices.others import DISTURBED, Watch

    bench = Bench(loaded, config)
    total = ROUNDS * len(bench.points)
    watch = Watch()
    with (
        interruptible() as stop,
        progress("calibrate", total, unit="steps", as_json=as_json) as on_step,
    ):
        timed = bench.measure(rounds=ROUNDS, budget=seconds, on_step=on_step, stop=stop)
    taken = watch.share()
    if taken >= DISTURBED:
        warn(
            f"other work took {taken:.0%} of the cores while steps were timed, and the rates hold "
            "it: calibrate again once the machine is idle"
        )
    return profile_of(loaded, bench, timed, partial=stop.cut_short, others_share=taken)
