"""One answer for one model on one device: bytes, requests that fit, and the decode floor."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvhouse import devices, spec
from kvhouse.core.policy import CONTIGUOUS_MAX, DEFAULT_WATERMARK, PAGED
from kvhouse.core.scheduler import DEFAULT_TOKEN_BUDGET
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout
from kvhouse.planner.budget import DEFAULT_UTILIZATION, Budget, kv_budget
from kvhouse.planner.fit import Fit, Shape, fits
from kvhouse.planner.numbers import KindBytes, Numbers, kinds, numbers
from kvhouse.planner.speed import Speed, compute_bound_batch, compute_bound_prompt, decode_speed
from kvhouse.spec.model import ModelSpec

#: Context that a plan is made for when none is given, unless the model's own limit is lower.
DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer of ``plan``; bytes are exact, speeds are floors of the roofline.

    Attributes:
        device_basis: ``datasheet``, ``measured``, or ``given`` for the user's own figures.
        weight_dtype: How the weights are stored, ``as stored`` for a file that mixes types.
        compute_dtype: The dtype whose FLOP/s the floors take: a wider one where the device has no
            figure for the weights' own, ``unknown`` where it has none, and floors then count
            bandwidth alone.
        context: Tokens that each request holds.
        new_tokens: How many of them it generated; what ``contiguous-pow2`` rounds up.
        max_length: Longest request allowed; what ``contiguous-max`` reserves.
        token_budget: The most tokens that one step computes for a request.
        bytes_per_token: What one more token takes while no layer lets an old one go.
        kinds: What each kind of layer keeps of a request of ``context`` tokens.
        numbers: One request of ``context`` tokens by three rules.
        slots: Places for a request's state in the pool; 0 where there is none.
        crossover_batch: Requests at ``context`` from which their KV outweighs the weights.
        crossover_length: Tokens from which the KV of one request does; None within ``max_length``.
        fits: One for each placement policy, at ``context`` tokens.
        fits_at_max_length: The same at ``max_length``.
        speeds: Decode floors at batch 1, and at the requests of ``contiguous-max`` and ``paged``.
        compute_bound_batch: Requests at ``context`` from which decode is bound by compute; None
            where it never is.
        prefill_seconds: Floor of one prompt of ``context`` tokens in one step.
        prefill_bound: ``bandwidth`` or ``compute``.
        compute_bound_prompt: Tokens from which a prefill is bound by compute.
    """

    model: str
    architecture: str
    device: str
    device_basis: str
    device_source: str
    weight_dtype: str
    compute_dtype: str
    kv_format: str
    block_size: int
    context: int
    new_tokens: int
    max_length: int
    token_budget: int
    watermark: float
    budget: Budget
    bytes_per_token: int
    bytes_per_block: int
    kinds: tuple[KindBytes, ...]
    numbers: Numbers
    blocks: int
    slots: int
    pool_bytes: int
    crossover_batch: int
    crossover_length: int | None
    fits: tuple[Fit, ...]
    fits_at_max_length: tuple[Fit, ...]
    speeds: tuple[Speed, ...]
    compute_bound_batch: int | None
    prefill_seconds: float
    prefill_bound: str
    compute_bound_prompt: int | None

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values with stable keys; docs/json.md describes them."""
        return asdict(self)


def plan(
    model: str | Path | ModelSpec,
    device: str | Device,
    *,
    kv_memory: int | None = None,
    context: int | None = None,
    new_tokens: int | None = None,
    max_length: int | None = None,
    kv_format: str = "bf16",
    weight_dtype: str | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    watermark: float = DEFAULT_WATERMARK,
    utilization: float = DEFAULT_UTILIZATION,
) -> Plan:
    """Size a model's KV cache on a device.

    Args:
        model: A catalogue name, a config, a GGUF file, or a spec.
        device: A device's name or figures.
        kv_memory: Bytes for keys and values; by default what reserve and weights leave.
        context: Tokens that each request holds; by default 4096, or ``max_length`` if lower.
        new_tokens: How many of them are output; by default a quarter.
        max_length: Longest request allowed; by default the model's own limit.
        kv_format: How keys and values are stored.
        weight_dtype: How the weights are stored; by default as published.
        block_size: Tokens per block.
        token_budget: The most tokens computed in one step; what windows need room for.
        watermark: Share of the pool that paged admissions keep free.
        utilization: Share of the device's memory that the engine may use.

    Raises:
        KvhouseError: The input is impossible; the message says which part.
    """
    model = model if isinstance(model, ModelSpec) else spec.load(model)
    device = device if isinstance(device, Device) else devices.get(device)
    max_length = model.length_limit(max_length)
    context = min(DEFAULT_CONTEXT, max_length) if context is None else context
    new_tokens = max(1, context // 4) if new_tokens is None else new_tokens
    _check_lengths(context, new_tokens, max_length, token_budget)
    layout = KVLayout.of(model, kv_format, block_size)
    budget = kv_budget(model, device, weight_dtype, utilization, kv_memory)
    pool = layout.pool_in(budget.kv, context, token_budget)
    if budget.given:
        layout.require(pool)
    shape = Shape(context, new_tokens, max_length, token_budget, watermark)
    at_context = fits(model, layout, pool, shape)
    by_kind = kinds(model, layout, context, max_length)
    three = numbers(layout, by_kind, context, token_budget)
    roofline = Roofline(model, layout, device, weight_dtype)
    shown = {fit.requests for fit in at_context if fit.policy in (CONTIGUOUS_MAX, PAGED)}
    batches = sorted({1, *shown} - {0}) if budget.kv else []
    prefill = roofline.prefill(context)
    return Plan(
        model=model.name,
        architecture=model.architecture,
        device=device.name,
        device_basis=device.basis,
        device_source=device.source,
        weight_dtype=_stored(model, weight_dtype),
        compute_dtype=roofline.compute_dtype,
        kv_format=kv_format,
        block_size=block_size,
        context=context,
        new_tokens=new_tokens,
        max_length=max_length,
        token_budget=token_budget,
        watermark=watermark,
        budget=budget,
        bytes_per_token=layout.bytes_per_token,
        bytes_per_block=layout.block_bytes,
        kinds=by_kind,
        numbers=three,
        blocks=pool.blocks,
        slots=pool.slots,
        pool_bytes=layout.pool_bytes(pool),
        crossover_batch=budget.weights // three.logical + 1,
        crossover_length=_crossover_length(model, layout, budget.weights, max_length),
        fits=at_context,
        fits_at_max_length=fits(model, layout, pool, replace(shape, tokens=max_length)),
        speeds=tuple(decode_speed(roofline, batch, context) for batch in batches),
        compute_bound_batch=compute_bound_batch(roofline, context),
        prefill_seconds=prefill.seconds,
        prefill_bound=prefill.bound,
        compute_bound_prompt=compute_bound_prompt(roofline),
    )


def _check_lengths(context: int, new_tokens: int, max_length: int, token_budget: int) -> None:
    if not 1 <= context <= max_length:
        raise KvhouseError(f"context {context}: must lie between 1 and max_length {max_length}")
    if not 1 <= new_tokens <= context:
        raise KvhouseError(f"new_tokens {new_tokens}: must lie between 1 and context {context}")
    if token_budget < 1:
        raise KvhouseError(f"token_budget {token_budget}: must be at least 1")


def _stored(model: ModelSpec, weight_dtype: str | None) -> str:
    if weight_dtype is None and model.stored_weight_bytes is not None:
        return "as stored"
    return weight_dtype or model.dtype


def _crossover_length(
    model: ModelSpec, layout: KVLayout, weights: int, max_length: int
) -> int | None:
    """The shortest request whose KV outweighs the weights; what is kept never falls."""

    def outweighs(tokens: int) -> bool:
        return model.kv_bytes(tokens, layout.format, dtype=layout.dtype) > weights

    if not outweighs(max_length):
        return None
    return bisect_left(range(1, max_length), True, key=outweighs) + 1
