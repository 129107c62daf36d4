"""A profile's rates, and a run beside its prediction."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from kvhouse.calibration.profile import Profile
from kvhouse.calibration.verify import Figure, Verification
from kvhouse.spec.fields import show_path
from kvhouse.units import seconds_text
from kvhouse.views.tables import say_wrapped, table

_NAMES = {
    "output_tokens_per_second": "output tokens/s",
    "requests_per_second": "requests/s",
    "first_token_seconds_mean": "first token, mean",
    "first_token_seconds_p50": "first token, p50",
    "first_token_seconds_p99": "first token, p99",
    "per_token_seconds_mean": "per output token, mean",
    "per_token_seconds_p50": "per output token, p50",
    "per_token_seconds_p99": "per output token, p99",
    "latency_seconds_mean": "latency, mean",
    "latency_seconds_p50": "latency, p50",
    "latency_seconds_p99": "latency, p99",
    "running_mean": "running, mean",
    "running_peak": "running, peak",
    "preemptions": "preemptions",
    "recomputed_tokens": "tokens recomputed",
    "steps": "steps",
    "used_share_mean": "pool used by tokens, mean",
    "makespan_seconds": "makespan",
}
_TEXTS: dict[str, Callable[[float], str]] = {
    "seconds": seconds_text,
    "per_second": lambda value: f"{value:,.3g}" if value < 10 else f"{value:,.1f}",
    "requests": lambda value: f"{value:,.1f}",
    "count": lambda value: f"{value:,.0f}",
    "share": lambda value: f"{value:.1%}",
}


def show_profile(console: Console, profile: Profile) -> None:
    """Print what was measured, what it comes to, and how well it fits."""
    rates, fit, machine = profile.rates, profile.residuals, profile.machine
    knots = zip(rates.knots, rates.knot_seconds, strict=True)
    where = f"{machine.processor}, {machine.threads} threads" if machine else "a server"
    title = f"{profile.model} on {where} (fitted)"
    rows = [[f"{tokens:,}", seconds_text(seconds)] for tokens, seconds in knots]
    console.print(table(title, ["tokens in the step", "weights and the rest"], rows))
    parts = [
        ["any row samples", seconds_text(rates.sampling)],
        ["a row that samples", seconds_text(rates.sample)],
        ["a row", seconds_text(rates.row)],
        ["KV that decoding reads", _rate(rates.decode_byte, 1e9, "GB/s")],
        ["KV that a prompt's chunk reads", _rate(rates.chunk_byte, 1e9, "GB/s")],
        ["attention of a prompt's chunk", _rate(rates.chunk_flop, 1e9, "GFLOP/s")],
    ]
    console.print(table("Beside that", ["", "time or rate"], parts))
    kinds = "kinds of steps" if machine else "median steps and lone prompts of requests"
    console.print(
        f"Fitted to {fit.steps} {kinds}, off by {fit.mean:.1%} on average and "
        f"{fit.worst:.1%} at most; foretelling those that were left out, by "
        f"{fit.cross_validated_mean:.1%} on average and {fit.cross_validated_p90:.1%} at the 90th "
        "percentile."
    )
    if profile.paths:
        rotated = ", rotated" if profile.kv_rotation else ""
        console.print(
            f"Computed {profile.paths.words} in {profile.dtype}; keys and values in "
            f"{profile.kv_format}{rotated}."
        )
    if profile.origin:
        console.print(f"Estimated {show_path(profile.origin)}.", markup=False)
    else:
        console.print(
            "The rates hold what else the machine did: steps took "
            f"{profile.disturbance:.1%} longer on average than typically."
        )
        if profile.others_share is not None:
            console.print(
                f"Other work took {profile.others_share:.1%} of the cores meanwhile (measured); "
                "what of it goes on all the time is in the typical times."
            )


def _rate(seconds: float, unit: float, name: str) -> str:
    return f"{1 / seconds / unit:,.1f} {name}" if seconds else "not seen"


def show_verification(console: Console, title: str, found: Verification, profile: Profile) -> None:
    """Print both levels."""
    exactness = found.exactness
    if exactness.exact:
        console.print(
            f"1. Replayed with the run's step times: the same {found.measured.steps:,} step plans "
            f"(SHA-256 {exactness.plan_log[:12]}), and every figure is equal."
        )
    else:
        console.print(
            "1. Replayed with the run's step times, these differ, which is a bug in kvhouse: "
            + ", ".join(exactness.differences),
            style="red",
        )
    rows = [
        [
            _NAMES[figure.name],
            _TEXTS[figure.unit](figure.predicted),
            _TEXTS[figure.unit](figure.measured),
            _error(figure),
        ]
        for figure in found.figures
    ]
    console.print(table(f"2. {title}", ["", "predicted", "measured", "error"], rows))
    steps = found.steps
    say_wrapped(
        console,
        f"Predicted: modelled, {profile.about}. On the run's own {steps.steps:,} steps the profile "
        f"is off by {steps.sum:+.1%} in all, and {steps.median:.1%} on the median step.",
    )


def _error(figure: Figure) -> str:
    return "-" if figure.error is None else f"{figure.error:+.1%}"
