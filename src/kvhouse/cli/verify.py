"""``kvhouse verify``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, engine_options, options
from kvhouse.cli.engine_options import PoolOptions
from kvhouse.cli.groups import grouped
from kvhouse.cli.output import print_json, require_apart, warn
from kvhouse.cli.progress import INTERRUPTED, interruptible, progress
from kvhouse.cli.trace_options import TraceOptions
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_bytes

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile
    from kvhouse.engine import EngineConfig
    from kvhouse.engine.load import LoadedModel

#: Seconds that steps are timed where there is no profile.
_CALIBRATION_SECONDS = 110.0
#: Memory for keys and values then, as ``kvhouse calibrate`` takes it.
_CALIBRATION_MEMORY = "2GiB"
#: The exit code where run and replay differ in what must be equal.
DIFFERENT = 3


@grouped
def verify_command(
    model: engine_options.RunModel,
    *,
    trace: Annotated[
        str,
        typer.Option(
            help="The traffic: a file, azure-conv-2023 or mooncake-conv, or generated traffic, as "
            "for replay. Prompts are random tokens of the trace's lengths."
        ),
    ],
    profile_file: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Predict with this profile of `kvhouse calibrate`. By default the one in the "
            "user's cache, which is made first where there is none.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes the prompts repeatable.")] = 0,
    dtype: engine_options.Dtype = "float32",
    asked: PoolOptions,
    taken: TraceOptions,
    backlog: options.Backlog = False,
    as_json: options.AsJson = False,
) -> None:
    """Predict a trace, run it for real, and show both side by side with the error of each figure.

    First exactly: replayed with the step times that the run recorded, all else must be equal.
    Then by the profile alone: throughput, TTFT, TPOT, concurrency and preemptions.

    Exits with 3 where the first of the two finds a difference.

    Example: kvhouse verify smollm2 --trace azure-conv-2023 --limit 8 --scale-lengths 0.1
    """
    require_apart({}, (trace, model))
    answering.require(model)

    from kvhouse.calibration.verify import verify
    from kvhouse.engine.traced import scenario_for

    config = answering.prepare(model, asked.config(dtype), dtype)
    traffic = taken.read(trace, as_json=as_json)
    loaded = answering.load(model, dtype)
    scenario = scenario_for(config, loaded.spec, traffic, as_backlog=backlog, dtype=loaded.dtype)
    profile = _profile(profile_file, loaded, config, as_json=as_json)
    times = profile.steps(loaded.spec, scenario.layout)
    with (
        interruptible() as stop,
        progress("run", len(traffic.requests), as_json=as_json) as on_ended,
    ):
        try:
            found = verify(loaded, scenario, times, config, seed=seed, on_ended=on_ended, stop=stop)
        except KvhouseError as reason:
            if not stop.cut_short:
                raise
            warn(str(reason))
            raise typer.Exit(INTERRUPTED) from None
    if otherwise := profile.otherwise(found.paths):
        warn(f"the profile {otherwise}")
    if as_json:
        print_json({"model": model, "profile": profile.about_dict(), **found.to_dict()})
    else:
        from rich.console import Console

        from kvhouse.views.calibration import show_verification

        title = f"{len(traffic.requests):,} requests of {trace}, {model}"
        show_verification(Console(), title, found, profile)
    if not found.exactness.exact:
        raise typer.Exit(DIFFERENT)


def _profile(
    file: str | None, loaded: LoadedModel, config: EngineConfig, *, as_json: bool
) -> Profile:
    """The profile that is named, or kept for this machine, or made now and kept."""
    from kvhouse.calibration.calibrate import elsewhere, keep, kept, kept_at, refuse_other
    from kvhouse.calibration.profile import read_profile
    from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET
    from kvhouse.core.scheduler import DEFAULT_MAX_RUNNING

    if file is not None:
        profile = read_profile(file)
        refuse_other(profile, loaded, config)
        reason = elsewhere(profile, loaded.threads)
        if reason:
            warn(f"the profile is of {reason}: its times may not be those of this run")
        return profile
    found, why = kept(loaded, config)
    if found:
        answering.say(f"kvhouse: by the profile of {found.made}")
        return found
    from kvhouse.cli.calibrating import calibrated

    answering.say(f"kvhouse: {why}: calibrating first, for at most two minutes")
    # The profile is kept for any traffic, so it must not stop at this one's limits.
    wide = replace(
        config,
        kv_memory=max(config.kv_memory, parse_bytes(_CALIBRATION_MEMORY)),
        token_budget=DEFAULT_TOKEN_BUDGET,
        max_running=DEFAULT_MAX_RUNNING,
    )
    profile = calibrated(loaded, wide, _CALIBRATION_SECONDS, as_json=as_json)
    if profile.partial:
        warn("the calibration was ended early: nothing was verified")
        raise typer.Exit(INTERRUPTED)
    keep(profile, kept_at(loaded.spec, config, loaded.dtype))
    return profile
