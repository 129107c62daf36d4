"""``kvhouse sweep``."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

from kvhouse.cli import options
from kvhouse.cli.groups import grouped
from kvhouse.cli.output import print_json
from kvhouse.cli.progress import interruptible, leave_partial, progress
from kvhouse.cli.setup_options import SetupOptions
from kvhouse.cli.tier_options import TierOptions
from kvhouse.cli.trace_options import PartOptions
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show

if TYPE_CHECKING:
    from kvhouse.replayer.sweep import Sweep, SweepResult

#: What can be an address of a Ray cluster, and no trace.
_ADDRESS = re.compile(r"auto|local|ray://.+|[\w.-]+:\d+")


class SweepCommand(TyperCommand):
    """Lets ``--ray`` stand without an address."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        return super().parse_args(ctx, with_address(args))


def with_address(arguments: list[str]) -> list[str]:
    """The arguments with an address after ``--ray`` where none is given."""
    named: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        named.append(argument)
        if argument == "--ray" and not _ADDRESS.fullmatch(following):
            named.append("auto")
    return named


def _axis(name: str, metavar: str, text: str) -> Any:  # noqa: ANN401 - typer's own type
    return typer.Option(name, metavar=f"{metavar}[,{metavar}]", help=text)


@grouped
def sweep_command(
    trace: options.Trace,
    *,
    models: Annotated[str, _axis("--models", "MODEL", "As --model of replay.")],
    devices: Annotated[str, _axis("--devices", "DEVICE", "As --device of replay.")] = "a100-80g",
    policies: Annotated[
        str,
        _axis("--policies", "NAME", "paged, contiguous-max, contiguous-pow2 or contiguous-oracle."),
    ] = "paged",
    kv_formats: Annotated[
        str, _axis("--kv-formats", "NAME", "bf16, fp16, fp32, fp8, int8 or int4.")
    ] = "bf16",
    block_sizes: Annotated[str, _axis("--block-sizes", "TOKENS", "Tokens per block.")] = "16",
    rates: Annotated[
        str,
        _axis(
            "--rates",
            "RATE",
            "Arrivals: 2.5 is requests per second, 1.5x so many times the trace's own rate.",
        ),
    ] = "1x",
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Results file that ends in .parquet. The same command goes on where it was ended, "
            "and computes only what is missing.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="Replays at once. By default one for each core."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Replay on a Ray cluster that is there already, by default the one that runs on "
            "this machine.",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="Best first by goodput (the default with an SLO), tokens (the default without), "
            "requests, ttft, tpot or latency.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", help="Rows of the table.")] = 20,
    taken: PartOptions,
    asked: SetupOptions,
    tiers: TierOptions,
    objective: options.SloOptions,
    as_json: options.AsJson = False,
) -> None:
    """Replay a trace in every combination of models, devices, policies, formats, sizes and rates.

    Over all cores, or a Ray cluster; nothing that is done is lost, whatever ends it.

    Example: kvhouse sweep azure-conv-2023 --models llama-3-8b --devices a100-80g,h100-80g
    --kv-formats bf16,fp8 --rates 1x,2x,4x --slo-ttft 1s --out results.parquet
    """
    from kvhouse import devices as device_table
    from kvhouse import spec
    from kvhouse.replayer.sweep import Grid, Rate, sweep_of
    from kvhouse.replayer.sweep.ranking import sorting

    grid = Grid(
        models=options.names(models),
        devices=options.names(devices),
        policies=options.names(policies),
        kv_formats=options.names(kv_formats),
        block_sizes=tuple(map(_block_size, options.names(block_sizes))),
        rates=tuple(map(Rate.parse, options.names(rates))),
    )
    slo = objective.slo()
    sort = sorting(sort, with_slo=slo is not None)
    specs = {name: spec.load(name) for name in grid.models}
    figures = {name: device_table.get(name) for name in grid.devices}
    traffic = taken.read(trace, as_json=as_json)
    first = specs[grid.models[0]], figures[grid.devices[0]]
    base = asked.setup(traffic, *first, tiers.tiering())
    sweep = sweep_of(grid, base, specs, figures, slo)
    result = _run(sweep, out, workers, ray, as_json)
    _show(result, sort, top, as_json)
    _leave(result)


def _run(
    sweep: Sweep, out: str | None, workers: int | None, ray: str | None, as_json: bool
) -> SweepResult:
    """Compute what is missing."""
    from kvhouse.replayer.sweep import run_sweep

    quiet = redirect_stdout(sys.stderr) if ray else nullcontext()  # Ray prints what happens
    with (
        interruptible() as stop,
        progress("sweep", len(sweep.grid), unit="cells", as_json=as_json) as bar,
        quiet,
    ):

        def begin(missing: int) -> None:
            bar.total = missing

        return run_sweep(
            sweep, out=out, workers=workers, ray=ray, on_begin=begin, on_row=bar, stop=stop
        )


def _show(result: SweepResult, sort: str, top: int, as_json: bool) -> None:
    if as_json:
        print_json(result.to_dict(sort))
        return
    from rich.console import Console

    from kvhouse.views.sweep import show_sweep

    show_sweep(Console(), result, sort, max(1, top))


def _leave(result: SweepResult) -> None:
    """Say what is missing, and leave accordingly."""
    if result.partial:
        leave_partial(f"{len(result.rows):,} of {result.cells:,} cells are done")
    failed = [row for row in result.rows if row.status == "failed"]
    if failed:
        first = f"{failed[0].model} on {failed[0].device}: {failed[0].reason}"
        raise KvhouseError(f"{len(failed):,} of {result.cells:,} cells failed; the first, {first}")


def _block_size(text: str) -> int:
    size = options.whole(text)
    if size is None:
        raise KvhouseError(f"block size {show(text)}: give a whole number of tokens")
    return size
