"""A plan on one screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from kvhouse.planner import Budget, Fit, KindBytes, Plan, Speed
from kvhouse.units import bytes_text, counted, seconds_text
from kvhouse.views.tables import say_wrapped, table, visible

_KIND_COLUMNS = ("layers", "per token", "fixed", "tokens kept", "needed", "static slot")
_FIT_COLUMNS = ("policy", "requests", "at max", "each holds", "reserved", "tails", "idle")
_SPEED_COLUMNS = ("batch", "KV read", "weights", "step", "each", "KV alone", "in all", "bound by")


def show_plan(console: Console, plan: Plan) -> None:
    """Print the memory, what layers keep, the requests that fit, and the decode floor."""
    console.print(
        Text.assemble(
            (visible(plan.model), "bold"),
            f" ({visible(plan.architecture)}) on ",
            (visible(plan.device), "bold"),
            f" · weights {plan.weight_dtype} · KV {plan.kv_format}",
            f" · one of {plan.tp} devices" if plan.tp > 1 else "",
        )
    )
    console.print(table("Memory", ("", "size", "bytes"), _memory(plan)))
    if plan.weights_note:
        console.print(f"Weights: {visible(plan.weights_note)}", markup=False, highlight=False)
    if plan.budget.missing:
        say_wrapped(console, _shortage(plan.budget, plan.device), "bold red")
    _show_kinds(console, plan)
    if not any(fit.requests for fit in plan.fits):
        console.print(f"Not one request of {plan.context:,} tokens fits.", style="bold red")
        return
    title = (
        f"Requests that memory admits: {plan.context:,} tokens each, at max {plan.max_length:,} "
        "(exact)"
    )
    pairs = zip(plan.fits, plan.fits_at_max_length, strict=True)
    rows = (_fit(fit, longest.requests, plan.pool_bytes) for fit, longest in pairs)
    console.print(table(title, _FIT_COLUMNS, rows))
    title = (
        f"Decode floor, tokens/s at most (roofline, {plan.device_basis}, "
        f"{plan.compute_dtype} FLOP/s)"
    )
    console.print(table(title, _SPEED_COLUMNS, (_speed(speed) for speed in plan.speeds)))
    say_wrapped(console, _turns(plan))


def _memory(plan: Plan) -> list[tuple[str, str, str]]:
    budget = plan.budget
    origin = "as given" if budget.given else "memory - reserve - weights"
    slots = f" and {plan.slots:,} slots for states" if plan.slots else ""
    sizes = [
        ("device memory", budget.memory),
        ("engine reserve (assumed)", budget.reserve),
        (f"weights ({plan.weights_basis})", budget.weights),
        (f"KV budget ({origin})", budget.kv),
        (
            f"KV pool: {counted(plan.blocks, 'block')} of {plan.block_size} tokens{slots}",
            plan.pool_bytes,
        ),
    ]
    return [(name, bytes_text(size), f"{size:,}") for name, size in sizes]


def _shortage(budget: Budget, device: str) -> str:
    what = "weights and this KV memory" if budget.given else "weights"
    advice = "narrower weights, a larger device or a higher utilization"
    if budget.given:
        advice = f"less KV memory, {advice}"
    return f"The {what} do not fit {device}: {bytes_text(budget.missing)} missing. Try {advice}."


def _show_kinds(console: Console, plan: Plan) -> None:
    title = f"What one request of {plan.context:,} tokens keeps (exact)"
    console.print(table(title, _KIND_COLUMNS, (_kind(kind) for kind in plan.kinds)))
    three = plan.numbers
    console.print(
        f"Needed {three.logical:,} B · reserved in pages {three.reserved:,} B "
        f"({three.formula}) · static slot {three.static:,} B\n"
        f"KV outweighs the weights from batch {plan.crossover_batch:,}{_alone(plan)}"
    )


def _alone(plan: Plan) -> str:
    if plan.crossover_length is None:
        return f", of one request never within {plan.max_length:,} tokens"
    return f", of one request from {plan.crossover_length:,} tokens"


def _kind(kind: KindBytes) -> tuple[str, ...]:
    return (
        f"{kind.layers} {kind.kind}",
        bytes_text(kind.token_bytes) if kind.token_bytes else "-",
        bytes_text(kind.state_bytes) if kind.state_bytes else "-",
        f"{kind.kept_tokens:,}" if kind.token_bytes else "-",
        bytes_text(kind.logical_bytes),
        bytes_text(kind.static_bytes),
    )


def _fit(fit: Fit, at_max_length: int, pool_bytes: int) -> tuple[str, ...]:
    return (
        fit.policy,
        f"{fit.requests:,}",
        f"{at_max_length:,}",
        bytes_text(fit.held_bytes),
        f"{fit.reservation_bytes / fit.held_bytes:.1%}",
        f"{(fit.rounding_bytes + fit.padding_bytes) / fit.held_bytes:.1%}",
        f"{fit.idle_bytes / pool_bytes:.1%}",
    )


def _speed(speed: Speed) -> tuple[str, ...]:
    by_kv = speed.kv_tokens_per_second
    return (
        f"{speed.batch:,}",
        bytes_text(speed.kv_bytes),
        bytes_text(speed.weight_bytes),
        seconds_text(speed.seconds),
        f"{speed.request_tokens_per_second:,.4g}",
        "-" if by_kv is None else f"{by_kv:,.0f}",
        f"{speed.tokens_per_second:,.0f}",
        speed.bound,
    )


def _turns(plan: Plan) -> str:
    if plan.compute_dtype == "unknown":
        return f"FLOP/s of {plan.device} are unknown, so floors count bandwidth alone."
    decode = (
        "at no batch"
        if plan.compute_bound_batch is None
        else f"from batch {plan.compute_bound_batch:,}"
    )
    prefill = (
        "at no length"
        if plan.compute_bound_prompt is None
        else f"from {plan.compute_bound_prompt:,} tokens"
    )
    return (
        f"Prefill floor of one prompt of {plan.context:,} tokens: "
        f"{seconds_text(plan.prefill_seconds)} (bound by {plan.prefill_bound}). "
        f"Bound by compute: decode {decode}, prefill {prefill}."
    )
