"""One answer for one model on one device: bytes, requests that fit, and the decode floor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvhouse import devices, spec
from kvhouse.core.memory import DEFAULT_WATERMARK, POLICIES
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout
from kvhouse.planner.budget import DEFAULT_UTILIZATION, Budget, kv_budget
from kvhouse.planner.concurrency import requests_that_fit
from kvhouse.spec.model import ModelSpec

#: Context that a plan is made for when none is given, unless the model's own limit is lower.
DEFAULT_CONTEXT = 4096


@dataclass(frozen=True, slots=True)
class Fit:
    """What a placement policy makes of the pool, for identical requests.

    Attributes:
        policy: ``paged`` or ``contiguous``.
        requests: Admitted by memory before its first refusal. Exact: the allocator's own number.
        held_bytes: Bytes that one request holds.
        token_bytes: Bytes of them that its tokens fill.
        idle_bytes: Pool bytes that hold no token once these requests are in.
    """

    policy: str
    requests: int
    held_bytes: int
    token_bytes: int
    idle_bytes: int


@dataclass(frozen=True, slots=True)
class Speed:
    """The floor of one decode step. A bound by the device's figures, not a forecast.

    Attributes:
        batch: Requests that each get one token.
        kv_bytes: Keys and values read.
        weight_bytes: Weights read.
        kv_seconds: Time to read the keys and values alone.
        seconds: Time of the step: all bytes or all FLOPs, whichever takes longer.
        kv_tokens_per_second: Ceiling by the keys and values alone.
        tokens_per_second: Ceiling of the whole step.
        bound: ``bandwidth`` or ``compute``.
    """

    batch: int
    kv_bytes: int
    weight_bytes: int
    kv_seconds: float
    seconds: float
    kv_tokens_per_second: float
    tokens_per_second: float
    bound: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer of ``plan``; bytes are exact, speeds are floors of the roofline.

    Attributes:
        device_basis: ``datasheet`` or ``measured``.
        weight_dtype: How the weights are stored, ``as stored`` for a file that mixes types.
        compute_dtype: The dtype whose FLOP/s the floors take; float32 where the device has no
            figure for the weights' own.
        context: Tokens that each request holds.
        max_length: Longest request allowed; what ``contiguous`` reserves.
        bytes_per_request: KV of ``context`` tokens, block rounding not counted.
        crossover_batch: Requests at ``context`` from which their KV outweighs the weights.
        fits: One for each placement policy.
        speeds: Decode floors at batch 1 and at each policy's number of requests.
        prefill_seconds: Floor of one prompt of ``context`` tokens in one step.
        prefill_bound: ``bandwidth`` or ``compute``.
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
    max_length: int
    watermark: float
    budget: Budget
    bytes_per_token: int
    bytes_per_block: int
    bytes_per_request: int
    blocks: int
    pool_bytes: int
    crossover_batch: int
    fits: tuple[Fit, ...]
    speeds: tuple[Speed, ...]
    prefill_seconds: float
    prefill_bound: str

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values with stable keys; docs/json.md describes them."""
        return asdict(self)


def plan(
    model: str | Path | ModelSpec,
    device: str | Device,
    *,
    kv_memory: int | None = None,
    context: int | None = None,
    max_length: int | None = None,
    kv_format: str = "bf16",
    weight_dtype: str | None = None,
    block_size: int = DEFAULT_BLOCK_SIZE,
    watermark: float = DEFAULT_WATERMARK,
    utilization: float = DEFAULT_UTILIZATION,
) -> Plan:
    """Size a model's KV cache on a device.

    Args:
        model: A catalogue name, a config, a GGUF file, or a spec.
        device: A device's name or figures.
        kv_memory: Bytes for keys and values; by default what reserve and weights leave.
        context: Tokens that each request holds; by default 4096, or ``max_length`` if lower.
        max_length: Longest request allowed; by default the model's own limit.
        kv_format: How keys and values are stored.
        weight_dtype: How the weights are stored; by default as published.
        block_size: Tokens per block.
        watermark: Share of the pool that paged admissions keep free.
        utilization: Share of the device's memory that the engine may use.

    Raises:
        KvhouseError: The input is impossible; the message says which part.
    """
    model = model if isinstance(model, ModelSpec) else spec.load(model)
    device = device if isinstance(device, Device) else devices.get(device)
    max_length = model.length_limit(max_length)
    context = min(DEFAULT_CONTEXT, max_length) if context is None else context
    if not 1 <= context <= max_length:
        raise KvhouseError(f"context {context}: must lie between 1 and max_length {max_length}")
    layout = KVLayout.of(model, kv_format, block_size)
    budget = kv_budget(model, device, weight_dtype, utilization, kv_memory)
    blocks = layout.blocks_in(budget.kv)
    if budget.given:
        layout.require_blocks(blocks)
    fits = tuple(
        _fit(policy, layout, blocks, context, max_length, watermark) for policy in POLICIES
    )
    roofline = Roofline(model, layout, device, weight_dtype)
    batches = sorted({1, *(fit.requests for fit in fits)} - {0}) if blocks else []
    prefill = roofline.prefill(context)
    request_bytes = context * layout.bytes_per_token
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
        max_length=max_length,
        watermark=watermark,
        budget=budget,
        bytes_per_token=layout.bytes_per_token,
        bytes_per_block=layout.block_bytes,
        bytes_per_request=request_bytes,
        blocks=blocks,
        pool_bytes=blocks * layout.block_bytes,
        crossover_batch=budget.weights // request_bytes + 1,
        fits=fits,
        speeds=tuple(_speed(roofline, device, batch, context) for batch in batches),
        prefill_seconds=prefill.seconds,
        prefill_bound=prefill.bound,
    )


def _stored(model: ModelSpec, weight_dtype: str | None) -> str:
    if weight_dtype is None and model.stored_weight_bytes is not None:
        return "as stored"
    return weight_dtype or model.dtype


def _fit(
    policy: str, layout: KVLayout, blocks: int, context: int, max_length: int, watermark: float
) -> Fit:
    requests = requests_that_fit(layout, blocks, context, policy, max_length, watermark)
    held = layout.blocks_for(max_length if policy == "contiguous" else context)
    token_bytes = context * layout.bytes_per_token
    return Fit(
        policy=policy,
        requests=requests,
        held_bytes=held * layout.block_bytes,
        token_bytes=token_bytes,
        idle_bytes=blocks * layout.block_bytes - requests * token_bytes,
    )


def _speed(roofline: Roofline, device: Device, batch: int, context: int) -> Speed:
    cost = roofline.decode_floor(batch, context)
    kv_seconds = cost.kv_read_bytes / device.bandwidth
    return Speed(
        batch=batch,
        kv_bytes=cost.kv_read_bytes,
        weight_bytes=cost.weight_bytes,
        kv_seconds=kv_seconds,
        seconds=cost.seconds,
        kv_tokens_per_second=batch / kv_seconds,
        tokens_per_second=batch / cost.seconds,
        bound=cost.bound,
    )
