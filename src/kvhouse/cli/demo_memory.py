"""The demos of ``kvhouse demo`` that need no model's weights: growth, warehouse and oom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json
from kvhouse.cli.pictures import Pictures, picture_of
from kvhouse.cli.progress import interruptible, leave_if_partial, progress

if TYPE_CHECKING:
    from kvhouse.replayer import ReplayResult
    from kvhouse.replayer.moments.warehouse import Warehouse


def growth_command(
    model: options.Model = "llama-2-7b",
    kv_format: options.KvFormat = "fp16",
    tokens: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", help="Where to stop; by default the model's limit."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Watch the cache grow token by token, until it passes the weights.

    Takes no time, and any model that `kvhouse plan` takes.

    Example: kvhouse demo growth gemma-3-27b
    """
    from kvhouse import spec
    from kvhouse.planner.growth import growth

    outcome = growth(spec.load(model), kv_format, tokens)
    if as_json:
        print_json(outcome.to_dict())
        return
    from rich.console import Console

    from kvhouse.views.growth import show_growth

    show_growth(Console(), outcome)


def warehouse_command(
    html: options.Html = None,
    lang: options.Lang = "en",
    as_json: options.AsJson = False,
) -> None:
    """Fill 24 GiB twice: 2 GiB reserved for each request, and in pages.

    The scheduler and the allocator are those of replay and run. Takes a second; --html replays
    the same backlog on a modelled clock and writes its page.
    """
    from kvhouse.replayer.moments.warehouse import Warehouse, warehouse

    pictures, setting = Pictures(html, None, None, lang), Warehouse()
    outcome = warehouse(setting)
    replays = _write_page(setting, pictures, as_json) if pictures else []
    if as_json:
        print_json(outcome.to_dict())
    else:
        from rich.console import Console

        from kvhouse.views.warehouse import show_warehouse

        show_warehouse(Console(), outcome)
    if replays:
        leave_if_partial(replays, len(outcome.shelves))


def _write_page(setting: Warehouse, pictures: Pictures, as_json: bool) -> list[ReplayResult]:
    """Replay both policies, and draw who held what over time."""
    from kvhouse.replayer.compare import compare
    from kvhouse.replayer.moments.warehouse import POLICIES

    setups = [setting.setup(policy) for policy in POLICIES]
    recorders = [pictures.recorder(setup) for setup in setups]
    total = setting.requests * len(setups)
    with (
        interruptible() as stop,
        pictures.open(stop) as draw,
        progress("replays", total, as_json=as_json) as on_ended,
    ):
        results = compare(setups, on_ended=on_ended, recorders=recorders, stop=stop)
        done = recorders[: len(results)]
        draw(picture_of(setups[0], setting.model, setting.device, results, done))
    return results


def oom_command(as_json: options.AsJson = False) -> None:
    """Run out of memory with memory free, and find where it is.

    One run of memory is reserved for each request. The refusal with the most memory free is
    taken apart: fragmentation, reservation, copies of a shared prompt; then the same requests
    are placed in pages, and the doctor is asked. Takes a second or two.
    """
    from kvhouse.replayer.moments.oom import out_of_memory
    from kvhouse.replayer.moments.oom_outcome import OomSetting

    outcome = out_of_memory(OomSetting())
    if as_json:
        print_json(outcome.to_dict())
        return
    from rich.console import Console

    from kvhouse.views.oom import show_oom

    show_oom(Console(), outcome)
