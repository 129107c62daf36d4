"""``kvhouse demo``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer

from kvhouse.cli import options
from kvhouse.cli.demo_chatbot import chatbot_command
from kvhouse.cli.demo_memory import growth_command, oom_command, warehouse_command
from kvhouse.cli.help import Commands
from kvhouse.cli.output import print_json
from kvhouse.cli.progress import progress
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from rich.console import Console

    from kvhouse.demo.paging import Outcome

demo_app = typer.Typer(cls=Commands)


@demo_app.callback(invoke_without_command=True)
def _demo(context: typer.Context, as_json: options.AsJson = False) -> None:
    """Guided tours: one point each, on real code. Without a name, lists them."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise KvhouseError("--json goes behind the demo's name, or without one lists the demos")
        return
    found = listed()
    if as_json:
        print_json({"demos": found})
        return
    from rich.console import Console

    from kvhouse.views.demo import show_demos

    show_demos(Console(), found)


def listed() -> list[dict[str, str]]:
    """Each demo with the first line of its help."""
    return [
        {"name": info.name or "", "shows": (info.callback.__doc__ or "").splitlines()[0]}
        for info in demo_app.registered_commands
        if info.callback
    ]


demo_app.command("growth")(growth_command)


@demo_app.command("cache")
def cache_command(as_json: options.AsJson = False) -> None:
    """Time a token with and without the KV cache, at growing lengths.

    Beside the times stand their floors. The model is SmolLM2-135M-Instruct on this machine's CPU.
    Takes about a minute.
    """
    from rich.console import Console

    from kvhouse import devices
    from kvhouse.demo.cache import CacheDemo, CacheOutcome, CacheSetting, load
    from kvhouse.views.cache import show_cache

    console, setting = Console(quiet=as_json), CacheSetting()
    with nullcontext() if as_json else Console(stderr=True).status(f"loading {setting.model}"):
        loaded = load(setting)
        device = devices.get(devices.LOCAL)
    demo = CacheDemo(setting, loaded, device)
    demo.measure(setting.lengths[0])  # what is compiled and cached on first use is not timed
    with progress("lengths", len(setting.lengths)) as advance:
        points = []
        for length in setting.lengths:
            points.append(demo.measure(length))
            advance(None)
    outcome = CacheOutcome(setting, device.title, tuple(points))
    if as_json:
        print_json(outcome.to_dict())
        return
    title = f"One more token of {setting.model}, measured on {device.title}"
    show_cache(console, title, outcome.points)


@demo_app.command("paging")
def paging_command(as_json: options.AsJson = False) -> None:
    """Plan, replay and run one backlog, contiguous and paged.

    The model is SmolLM2-135M-Instruct, the traffic a slice of a public trace. Takes about a
    minute and a half on two cores.
    """
    from rich.console import Console

    console = Console(quiet=as_json)
    outcome = _paging(console)
    outcome.check()
    if as_json:
        print_json(outcome.to_dict())


demo_app.command("warehouse")(warehouse_command)
demo_app.command("oom")(oom_command)
demo_app.command("chatbot")(chatbot_command)


def _paging(console: Console) -> Outcome:
    """Run the demo's parts and show each as it is done."""
    from kvhouse import devices
    from kvhouse.core.policy import CONTIGUOUS_MAX, PAGED
    from kvhouse.demo.paging import POLICIES, Outcome, PagingDemo, Setting
    from kvhouse.views.demo import Agreement, show_agreement, show_gain
    from kvhouse.views.plan import show_plan
    from kvhouse.views.replay import show_results

    demo = PagingDemo(Setting(), progress)
    setting = demo.setting
    _head(console, "1. Plan", "this machine's bandwidth is measured first")
    device = devices.get(devices.LOCAL)
    plan = demo.plan(device)
    show_plan(console, plan)

    subject = f"{setting.requests} requests of {setting.trace}, lengths x {setting.scale_lengths}"
    _head(console, "2. Replay", f"{subject}, as a backlog, on a modelled clock")
    replays = {policy: demo.replay(policy, device) for policy in POLICIES}
    show_results(console, "Replay", [drive.result for drive in replays.values()])

    _head(console, "3. Run", f"the same with the real {setting.model} on this CPU")
    from kvhouse.engine.load import load_model

    with nullcontext() if console.quiet else console.status(f"loading {setting.model}"):
        loaded = load_model(setting.model, setting.dtype)
    runs = {policy: demo.run(policy, loaded) for policy in POLICIES}
    show_results(console, "Run", [drive.result for drive in runs.values()])
    planned = {fit.policy: fit.requests for fit in plan.fits}
    show_agreement(
        console,
        [Agreement(policy, planned[policy], replays[policy], runs[policy]) for policy in POLICIES],
    )
    _head(console, "4. What paging bought", "and where the other bytes went")
    show_gain(console, runs[CONTIGUOUS_MAX].result, runs[PAGED].result)
    return Outcome(setting, plan, replays, runs)


def _head(console: Console, name: str, what: str) -> None:
    console.rule(f"[bold]{name}[/bold]: {what}", align="left")
