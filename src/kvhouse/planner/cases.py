"""From what a user names to the case that is planned."""

from __future__ import annotations

from numbers import Integral
from pathlib import Path

from kvhouse import devices, spec
from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, DEFAULT_WATERMARK, PAGED, get_policy
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import DEFAULT_BLOCK_SIZE
from kvhouse.planner.budget import DEFAULT_UTILIZATION
from kvhouse.planner.case import Case
from kvhouse.spec.fields import show
from kvhouse.spec.model import ModelSpec

#: Context that a plan is made for when none is given, unless the model's own limit is lower.
DEFAULT_CONTEXT = 4096


def case_for(
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
    policy: str = PAGED,
    tp: int = 1,
    mtp: bool = False,
) -> Case:
    """One way to serve a model.

    Args:
        model: A catalogue name, a config, a GGUF file, or a spec.
        device: A device's name or figures.
        kv_memory: Bytes for keys and values on each device; by default what reserve and weights
            leave.
        context: Tokens that each request holds; by default 4096, or ``max_length`` if lower.
        new_tokens: How many of them are output; by default a quarter.
        max_length: Longest request allowed; by default the model's own limit.
        kv_format: How keys and values are stored.
        weight_dtype: How the weights are stored; by default as published.
        block_size: Tokens per block.
        token_budget: The most tokens computed in one step; what windows need room for.
        watermark: Share of the pool that paged admissions keep free.
        utilization: Share of the device's memory that the engine may use.
        policy: The placement that remedies are measured against.
        tp: Devices that share every layer.
        mtp: Whether the layers that predict further tokens keep KV too, as in an engine that
            speculates with them; their weights are not counted.

    Raises:
        KvhouseError: The input is impossible; the message says which part.
    """
    _check_whole(
        kv_memory=kv_memory,
        context=context,
        new_tokens=new_tokens,
        max_length=max_length,
        block_size=block_size,
        token_budget=token_budget,
        tp=tp,
    )
    model = model if isinstance(model, ModelSpec) else spec.load(model)
    device = device if isinstance(device, Device) else devices.get(device)
    max_length = model.length_limit(max_length)
    context = min(DEFAULT_CONTEXT, max_length) if context is None else context
    if not 1 <= context <= max_length:
        raise KvhouseError(f"context {context}: must lie between 1 and max_length {max_length}")
    new_tokens = max(1, context // 4) if new_tokens is None else new_tokens
    if not 1 <= new_tokens <= context:
        raise KvhouseError(f"new_tokens {new_tokens}: must lie between 1 and context {context}")
    if token_budget < 1:
        raise KvhouseError(f"token_budget {token_budget}: must be at least 1")
    if mtp and not model.mtp_layers:
        raise KvhouseError(f"{model.name}: has no layers that predict further tokens")
    return Case(
        model.with_mtp() if mtp else model,
        device,
        context,
        new_tokens,
        max_length,
        policy=get_policy(policy),
        kv_format=kv_format,
        weight_dtype=weight_dtype,
        block_size=block_size,
        token_budget=token_budget,
        watermark=watermark,
        utilization=utilization,
        kv_memory=kv_memory,
        tp=tp,
    )


def _check_whole(**values: object) -> None:
    """Refuse a fraction of a byte or a token, which every sum after it would carry on."""
    for name, value in values.items():
        if value is not None and not isinstance(value, Integral):
            raise KvhouseError(f"{name} {show(value)}: give a whole number")
