"""``kvhouse calibrate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, calibrating, engine_options, options
from kvhouse.cli.engine_options import StepOptions
from kvhouse.cli.groups import given, grouped
from kvhouse.cli.output import print_json, require_apart, whole_file
from kvhouse.cli.progress import leave_partial
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile

#: Seconds that a calibration may be given.
LEAST_SECONDS, MOST_SECONDS = 5.0, 3600.0
#: What says how a server runs that is seen from outside.
_OF_A_SERVER = ("--kv-format", "--block-size", "--token-budget")


@dataclass(frozen=True, slots=True)
class CalibrateOptions(StepOptions):
    """Steps are timed in a larger pool."""

    kv_memory: engine_options.EngineMemory = calibrating.MEMORY


@grouped
def calibrate_command(
    model: engine_options.RunModel,
    *,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where the profile is written. By default in the user's cache, where "
            "`kvhouse verify` looks for it.",
        ),
    ] = None,
    from_bench: Annotated[
        list[str] | None,
        typer.Option(
            "--from-bench",
            metavar="FILE",
            help="Fit to what `kvhouse bench URL … --out FILE` saw of a server, and time nothing. "
            "Several times for several loads of one server. --dtype, --kv-format, --block-size and "
            "--token-budget then say how it runs.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long steps are timed at most.")
    ] = calibrating.SECONDS,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16 or float16: weights and arithmetic. By default float32; of a "
            "server seen from outside bfloat16 is assumed.",
        ),
    ] = None,
    asked: CalibrateOptions,
    as_json: options.AsJson = False,
) -> None:
    """Measure how long the engine's steps take on this machine, and fit a cost model to them.

    Steps of many batches, contexts and chunks of prompts are timed, and rates are fitted that
    `kvhouse replay --profile FILE` and `kvhouse verify` go by. Leave the machine alone meanwhile.

    With --from-bench the steps of any OpenAI-compatible server are estimated from the times of its
    tokens: bench it once with one request at a time and once busy, with prompts of many lengths.

    Example: kvhouse calibrate smollm2 --out smollm2.json

    Example: kvhouse calibrate llama-3.1-8b --from-bench idle.json --from-bench busy.json
    """
    if from_bench:
        for option in given(asked):
            if option not in _OF_A_SERVER:
                raise KvhouseError(f"{option} is for steps that are timed here: not --from-bench")
        from kvhouse.cli.from_bench import calibrate_from_bench

        profile = calibrate_from_bench(
            model,
            from_bench,
            out,
            dtype or "bfloat16",
            asked.kv_format,
            asked.block_size,
            asked.token_budget,
        )
        _say(profile, out, as_json=as_json)
        return
    dtype = dtype or "float32"
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise KvhouseError(
            f"--seconds {seconds:g}: give {LEAST_SECONDS:g} to {MOST_SECONDS:,.0f} seconds"
        )
    require_apart({"--out": out}, (model,))
    answering.require(model)

    from kvhouse.calibration.calibrate import keep, kept_at
    from kvhouse.replayer import Stop

    config = answering.feasible_config(model, asked.config(dtype), dtype)
    stop = Stop()
    with whole_file(out, "profile", stop) as write:
        loaded = answering.load(model, dtype)
        profile = calibrating.calibrated(loaded, config, seconds, as_json=as_json)
        stop.cut_short = profile.partial
        if write:
            write(profile.encode())
    where = out
    if out is None and not profile.partial:
        path = kept_at(loaded.spec, config, loaded.dtype)
        keep(profile, path)
        where = str(path)
    _say(profile, None if profile.partial else where, as_json=as_json)
    if profile.partial:
        name = f", written to {out}.partial" if out else ", and kept nowhere"
        leave_partial(f"ended early, fitted to {profile.residuals.steps} kinds of steps{name}")


def _say(profile: Profile, where: str | None, *, as_json: bool) -> None:
    """Print a profile, and where it was written."""
    if as_json:
        print_json(profile.model_dump())
        return
    from rich.console import Console

    from kvhouse.views.calibration import show_profile

    show_profile(Console(), profile)
    if where:
        print(f"Written to {where}")
