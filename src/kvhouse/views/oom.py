"""A refusal although memory is free: where it is, where to look first, and what would help."""

from __future__ import annotations

from functools import partial

from rich.console import Console

from kvhouse.replayer.moments.oom_outcome import FRAGMENTATION, NO_SHARING, RESERVATION, OomOutcome
from kvhouse.units import bytes_text
from kvhouse.views.replay import LEDGER_NAMES
from kvhouse.views.tables import say_whole, table


def show_oom(console: Console, outcome: OomOutcome) -> None:
    """Print what happened, the ledger, the causes, the same in pages, and the doctor's words."""
    say = partial(say_whole, console)
    for line in _situation(outcome):
        say(line)
    say(_refusal(outcome), "bold")
    say(_how_often(outcome))
    say()
    title = f"Where the {bytes_text(outcome.ledger.total)} are (exact)"
    console.print(table(title, ("", "bytes", "of all"), _ledger_rows(outcome)))
    say("Look first at", "bold")
    for place, cause in enumerate(outcome.causes, 1):
        say(f"{place}. {cause.name}, {bytes_text(cause.size)}: {_why(cause.name, outcome)}")
    say()
    columns = ("", "they hold", "the refused one", "behind it")
    title = "The same requests at the same moment (exact)"
    console.print(table(title, columns, _ways(outcome)))
    say("The same figures in the words of PyTorch's allocator, and `kvhouse doctor` on them:")
    say(f"  {outcome.advice.line}")
    say(f"  {outcome.advice.title}: {outcome.advice.reason}")
    for flag in outcome.advice.flags:
        say(f"  → {flag}", "bold")


def _situation(outcome: OomOutcome) -> tuple[str, str]:
    setting = outcome.setting
    return (
        f"{bytes_text(setting.kv_memory)} for the keys and values of {setting.model} in "
        f"{setting.kv_format}, {setting.policy}: each request is given one run,",
        "for its prompt and its answer rounded up to a power of two. All prompts begin with the "
        f"same {setting.system_tokens:,} tokens.",
    )


def _refusal(outcome: OomOutcome) -> str:
    refusal, block = outcome.refusal, outcome.block_bytes
    return (
        f"Request {refusal.request} is out of memory: it needs "
        f"{bytes_text(refusal.needed * block)} ({refusal.needed:,} blocks), and "
        f"{bytes_text(refusal.free * block)} ({refusal.free:,} blocks) are free."
    )


def _how_often(outcome: OomOutcome) -> str:
    return (
        f"That was step {outcome.step:,}. With enough memory free, {outcome.refused_steps:,} of "
        f"{outcome.steps:,} steps refused one of {outcome.refused_requests:,} requests."
    )


def _ledger_rows(outcome: OomOutcome) -> list[list[str]]:
    ledger = outcome.ledger
    copies = next(cause.size for cause in outcome.causes if cause.name == NO_SHARING)
    sizes = {
        LEDGER_NAMES["used"]: ledger.used,
        "  of these, further copies of one prompt": copies,
        **{LEDGER_NAMES[name]: ledger.to_dict()[name] for name in ("reserved", "internal")},
        "free, in runs too short": ledger.external,
        "free, and of use": ledger.free,
    }
    return [[name, bytes_text(size), f"{size / ledger.total:.1%}"] for name, size in sizes.items()]


def _why(cause: str, outcome: OomOutcome) -> str:
    runs, system = outcome.free_runs, outcome.setting.system_tokens
    return {
        FRAGMENTATION: f"free, in {len(runs):,} runs, the longest of {max(runs):,} blocks. "
        "Pages need no run.",
        NO_SHARING: f"{outcome.copies:,} copies of the same {system:,} tokens. A prefix cache "
        "keeps one.",
        RESERVATION: "held for tokens to come, or for none. Pages are taken as tokens come.",
    }[cause]


def _ways(outcome: OomOutcome) -> list[list[str]]:
    ledger = outcome.ledger
    held = ledger.total - ledger.external - ledger.free
    rows = [[outcome.setting.policy, bytes_text(held), "out of memory", "-"]]
    for one in outcome.otherwise:
        name = f"{one.policy} + prefix cache" if one.prefix_cache else one.policy
        got = "is in" if one.admitted else "out of memory"
        rows.append([name, bytes_text(one.held_bytes), got, f"+ {one.more:,}"])
    return rows
