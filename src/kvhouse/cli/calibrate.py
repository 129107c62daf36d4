"""``kvhouse calibrate``."""

from __future__ import annotations

from typing import Annotated

import typer

from kvhouse.cli import answering, engine_options, options
from kvhouse.cli.output import print_json, require_apart, warn, whole_file
from kvhouse.cli.progress import INTERRUPTED
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_bytes

#: Seconds that a calibration may be given.
LEAST_SECONDS, MOST_SECONDS = 5.0, 3600.0


def calibrate_command(
    model: engine_options.RunModel,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where the profile is written. By default in the user's cache, where "
            "`kvhouse verify` looks for it.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long steps are timed at most.")
    ] = 110.0,
    kv_memory: engine_options.EngineMemory = "2GiB",
    dtype: engine_options.Dtype = "float32",
    kv_format: engine_options.EngineFormat = None,
    max_length: options.MaxLength = None,
    block_size: options.BlockSize = 16,
    token_budget: options.TokenBudget = 2048,
    max_running: options.MaxRunning = 256,
    as_json: options.AsJson = False,
) -> None:
    """Measure how long the engine's steps take on this machine, and fit a cost model to them.

    Steps of many batches, contexts and chunks of prompts are timed, and rates are fitted that
    `kvhouse replay --profile FILE` and `kvhouse verify` go by. Leave the machine alone meanwhile.

    Example: kvhouse calibrate smollm2 --out smollm2.json
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise KvhouseError(
            f"--seconds {seconds:g}: give {LEAST_SECONDS:g} to {MOST_SECONDS:,.0f} seconds"
        )
    require_apart({"--out": out}, (model,))
    answering.require(model)

    from kvhouse.calibration.calibrate import keep, kept_at
    from kvhouse.cli.calibrating import calibrated
    from kvhouse.engine import EngineConfig
    from kvhouse.layout import KVLayout

    config = answering.prepare(
        model,
        EngineConfig(
            kv_memory=parse_bytes(kv_memory),
            kv_format=kv_format or answering.FORMAT_OF.get(dtype, dtype),
            block_size=block_size,
            max_length=max_length,
            token_budget=token_budget,
            max_running=max_running,
        ),
        dtype,
        share=False,
    )
    from kvhouse.replayer import Stop

    stop = Stop()
    with whole_file(out, "profile", stop) as write:
        loaded = answering.load(model, dtype)
        profile = calibrated(loaded, config, seconds, as_json=as_json)
        stop.cut_short = profile.partial
        if write:
            write(profile.encode())
    where = out
    if out is None and not profile.partial:
        layout = KVLayout.of(loaded.spec, config.kv_format, block_size, dtype=loaded.dtype)
        path = kept_at(loaded.spec, layout, loaded.dtype)
        keep(profile, path)
        where = str(path)
    if as_json:
        print_json(profile.model_dump())
    else:
        from rich.console import Console

        from kvhouse.views.calibration import show_profile

        show_profile(Console(), profile)
        if where and not profile.partial:
            print(f"Written to {where}")
    if profile.partial:
        name = f", written to {out}.partial" if out else ", and kept nowhere"
        warn(f"partial: ended early, fitted to {profile.residuals.steps} kinds of steps{name}")
        raise typer.Exit(INTERRUPTED)
