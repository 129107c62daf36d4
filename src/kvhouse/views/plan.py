"""A plan on one screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from kvhouse.planner import Budget, Fit, Plan, Speed
from kvhouse.units import bytes_text, seconds_text
from kvhouse.views.tables import table

_SPEED_COLUMNS = ("batch", "KV read", "weights", "step", "by KV alone", "with weights", "bound by")


def show_plan(console: Console, plan: Plan) -> None:
    """Print memory, requests that fit under each policy, and the decode floor."""
    console.print(
        Text.assemble(
            (plan.model, "bold"),
            f" ({plan.architecture}) on ",
            (plan.device, "bold"),
            f" · weights {plan.weight_dtype} · KV {plan.kv_format}",
        )
    )
    console.print(table("Memory (bytes exact)", ("", "size", "bytes"), _memory(plan)))
    if plan.budget.missing:
        console.print(_shortage(plan.budget, plan.device), style="bold red")
    if plan.blocks == 0:
        console.print("No block of KV fits: no request can be served.", style="bold red")
        return
    title = (
        f"Requests that memory admits, {plan.context:,} tokens each "
        f"(exact; paged keeps {plan.watermark:.0%} free)"
    )
    fit_columns = ("policy", "requests", "held by each", "pool idle")
    console.print(table(title, fit_columns, (_fit(fit, plan) for fit in plan.fits)))
    title = (
        f"Decode floor at {plan.context:,} tokens, tokens/s at most "
        f"(roofline, {plan.device_basis} figures, {plan.compute_dtype} FLOP/s)"
    )
    console.print(table(title, _SPEED_COLUMNS, (_speed(speed) for speed in plan.speeds)))
    console.print(
        f"Prefill floor of one prompt of {plan.context:,} tokens: "
        f"{seconds_text(plan.prefill_seconds)} (bound by {plan.prefill_bound})"
    )


def _memory(plan: Plan) -> list[tuple[str, str, str]]:
    budget = plan.budget
    origin = "as given" if budget.given else "memory - reserve - weights"
    sizes = [
        ("device memory", budget.memory),
        ("engine reserve (assumed)", budget.reserve),
        ("weights", budget.weights),
        (f"KV budget ({origin})", budget.kv),
        (f"KV pool: {plan.blocks:,} blocks of {plan.block_size} tokens", plan.pool_bytes),
        ("KV per token", plan.bytes_per_token),
        (f"KV per request of {plan.context:,} tokens", plan.numbers.logical),
    ]
    rows = [(name, bytes_text(size), f"{size:,}") for name, size in sizes]
    rows.append(("KV outweighs the weights from batch", f"{plan.crossover_batch:,}", ""))
    return rows


def _shortage(budget: Budget, device: str) -> str:
    what = "weights and this KV memory" if budget.given else "weights"
    advice = "narrower weights, a larger device or a higher utilization"
    return f"The {what} do not fit {device}: {bytes_text(budget.missing)} missing. Try {advice}."


def _fit(fit: Fit, plan: Plan) -> tuple[str, str, str, str]:
    idle = fit.idle_bytes / plan.pool_bytes
    return (fit.policy, f"{fit.requests:,}", bytes_text(fit.held_bytes), f"{idle:.1%}")


def _speed(speed: Speed) -> tuple[str, ...]:
    return (
        f"{speed.batch:,}",
        bytes_text(speed.kv_bytes),
        bytes_text(speed.weight_bytes),
        seconds_text(speed.seconds),
        f"{speed.kv_tokens_per_second:,.0f}",
        f"{speed.tokens_per_second:,.0f}",
        speed.bound,
    )
