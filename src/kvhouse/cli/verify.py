"""``kvhouse verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, calibrating, engine_options, options
from kvhouse.cli.engine_options import PoolOptions
from kvhouse.cli.groups import grouped
from kvhouse.cli.output import print_json, require_apart, warn
from kvhouse.cli.progress import INTERRUPTED, interruptible, progress
from kvhouse.cli.trace_options import TraceOptions
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile
    from kvhouse.engine import EngineConfig
    from kvhouse.engine.load import LoadedModel
    from kvhouse.spec import ModelSpec

#: What helps where there is room for the run, and none for the pool in which steps are timed.
_SMALLER_CALIBRATION = (
    "steps are timed in that much; `kvhouse calibrate --kv-memory SIZE` with the same options "
    "times them in less, and verify then goes by its profile"
)
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
    from kvhouse.engine.load import describe_model
    from kvhouse.engine.traced import scenario_for

    config = answering.feasible_config(model, asked.config(dtype), dtype)
    profile, why = _known(profile_file, describe_model(model), config, dtype)
    wide = calibrating.widened(config)
    if profile is None:
        answering.feasible_config(model, wide, dtype, advice=f"{why}, so {_SMALLER_CALIBRATION}")
    traffic = taken.read(trace, as_json=as_json)
    loaded = answering.load(model, dtype)
    scenario = scenario_for(config, loaded.spec, traffic, as_backlog=backlog, dtype=loaded.dtype)
    if profile is None:
        answering.say(f"kvhouse: {why}: calibrating first, for at most two minutes")
        profile = _calibrated(loaded, wide, as_json=as_json)
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


def _known(
    file: str | None, spec: ModelSpec, config: EngineConfig, dtype: str
) -> tuple[Profile | None, str]:
    """The profile that is named or kept for this machine, and why there is none."""
    from kvhouse.calibration.calibrate import elsewhere, kept, refuse_other
    from kvhouse.calibration.profile import read_profile
    from kvhouse.engine.load import computing_threads

    if file is None:
        profile, why = kept(spec, config, dtype, computing_threads())
        if profile:
            answering.say(f"kvhouse: by the profile of {profile.made}")
        return profile, why
    profile = read_profile(file)
    refuse_other(profile, spec, config, dtype)
    reason = elsewhere(profile, computing_threads())
    if reason:
        warn(f"the profile is of {reason}: its times may not be those of this run")
    return profile, ""


def _calibrated(loaded: LoadedModel, config: EngineConfig, *, as_json: bool) -> Profile:
    """A profile that is made now, and kept for any traffic."""
    from kvhouse.calibration.calibrate import keep, kept_at

    profile = calibrating.calibrated(loaded, config, calibrating.SECONDS, as_json=as_json)
    if profile.partial:
        warn("the calibration was ended early: nothing was verified")
        raise typer.Exit(INTERRUPTED)
    keep(profile, kept_at(loaded.spec, config, loaded.dtype))
    return profile
