"""One answer for one model on one device: bytes, requests that fit, and the decode floor."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kvhouse.core.policy import CONTIGUOUS_MAX, PAGED
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.layout import KVLayout
from kvhouse.planner.budget import Budget
from kvhouse.planner.case import Case
from kvhouse.planner.cases import case_for
from kvhouse.planner.fit import Fit, Shape, fits
from kvhouse.planner.numbers import KindBytes, Numbers, kinds, numbers
from kvhouse.planner.speed import Speed, compute_bound_batch, compute_bound_prompt, decode_speed
from kvhouse.spec.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer of ``plan``; bytes are exact, speeds are floors of the roofline.

    With several devices, bytes and requests are those of one of them: each has its share of every
    request.

    Attributes:
        tp: Devices that share every layer.
        device_basis: ``datasheet``, ``measured``, or ``given`` for the user's own figures.
        weight_dtype: How the weights are stored, ``as stored`` for a file that mixes types.
        weights_basis: ``exact``, ``estimated``, or ``stored`` in the headers of the files.
        weights_note: What the count of the weights rests on or leaves out; empty for nothing.
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
    tp: int
    device: str
    device_basis: str
    device_source: str
    weight_dtype: str
    weights_basis: str
    weights_note: str
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


def plan(model: str | Path | ModelSpec, device: str | Device, **options: Any) -> Plan:  # noqa: ANN401
    """Size a model's KV cache on a device.

    Args:
        model: A catalogue name, a config, a GGUF file, or a spec.
        device: A device's name or figures.
        options: Those of ``case_for``.

    Raises:
        KvhouseError: The input is impossible; the message says which part.
    """
    return plan_case(case_for(model, device, **options))


def plan_case(case: Case) -> Plan:
    """Size the KV cache of a case.

    Raises:
        KvhouseError: The case is impossible; the message says which part.
    """
    model, device, context = case.rank(), case.device, case.context
    layout, budget = case.layout(), case.budget()
    pool = layout.pool_in(budget.kv, context, case.token_budget)
    if budget.given:
        layout.require(pool)
    shape = Shape(context, case.new_tokens, case.max_length, case.token_budget, case.watermark)
    at_context = fits(model, layout, pool, shape)
    by_kind = kinds(model, layout, context, case.max_length)
    three = numbers(layout, by_kind, context, case.token_budget)
    roofline = Roofline(model, layout, device, case.weight_dtype)
    shown = {fit.requests for fit in at_context if fit.policy in (CONTIGUOUS_MAX, PAGED)}
    batches = sorted({1, *shown} - {0}) if budget.kv else []
    prefill = roofline.prefill(context)
    return Plan(
        model=model.name,
        architecture=model.architecture,
        tp=case.tp,
        device=device.name,
        device_basis=device.basis,
        device_source=device.source,
        weight_dtype=_stored(model, case.weight_dtype),
        weights_basis=model.weight_bytes_basis(case.weight_dtype),
        weights_note=model.weights_note,
        compute_dtype=roofline.compute_dtype,
        kv_format=case.kv_format,
        block_size=case.block_size,
        context=context,
        new_tokens=case.new_tokens,
        max_length=case.max_length,
        token_budget=case.token_budget,
        watermark=case.watermark,
        budget=budget,
        bytes_per_token=layout.bytes_per_token,
        bytes_per_block=layout.block_bytes,
        kinds=by_kind,
        numbers=three,
        blocks=pool.blocks,
        slots=pool.slots,
        pool_bytes=layout.pool_bytes(pool),
        crossover_batch=budget.weights // three.logical + 1,
        crossover_length=crossover_length(model, layout, budget.weights, case.max_length),
        fits=at_context,
        fits_at_max_length=fits(model, layout, pool, replace(shape, tokens=case.max_length)),
        speeds=tuple(
            decode_speed(roofline, batch, context, case.link_seconds(batch)) for batch in batches
        ),
        compute_bound_batch=compute_bound_batch(roofline, context),
        prefill_seconds=prefill.seconds + case.link_seconds(context),
        prefill_bound=prefill.bound,
        compute_bound_prompt=compute_bound_prompt(roofline),
    )


def _stored(model: ModelSpec, weight_dtype: str | None) -> str:
    if weight_dtype is None and model.stored_weight_bytes is not None:
        return "as stored"
    if weight_dtype is None and model.storage is not None:
        return model.storage.name
    return weight_dtype or model.dtype


def crossover_length(
    model: ModelSpec, layout: KVLayout, weights: int, max_length: int
) -> int | None:
    """The shortest request whose KV outweighs the weights; None where none of its length does.

    Args:
        model: The model; what is kept of a request never falls as it grows.
        layout: How its keys and values are stored.
        weights: Bytes of the weights.
        max_length: The longest request, in tokens.
    """

    def outweighs(tokens: int) -> bool:
        return model.kv_bytes(tokens, layout.format, dtype=layout.dtype) > weights

    if not outweighs(max_length):
        return None
    return bisect_left(range(1, max_length), True, key=outweighs) + 1
