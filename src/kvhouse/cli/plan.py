"""``kvhouse plan``."""

from __future__ import annotations

from typing import Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json


def plan_command(
    model: options.Model,
    device: options.Device = "a100-80g",
    kv_memory: options.KvMemory = None,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Tokens that each request holds. By default 4096, or --max-length if lower.",
        ),
    ] = None,
    max_length: options.MaxLength = None,
    kv_format: options.KvFormat = "bf16",
    weight_dtype: options.WeightDtype = None,
    block_size: options.BlockSize = 16,
    watermark: options.Watermark = 0.05,
    utilization: options.Utilization = 0.9,
    as_json: options.AsJson = False,
) -> None:
    """Size a model's KV cache: exact bytes, requests that fit, the decode floor.

    Example: kvhouse plan llama-2-7b --device a10-24g --context 500
    """
    from kvhouse.planner import plan

    result = plan(
        model,
        device,
        kv_memory=options.size(kv_memory),
        context=context,
        max_length=max_length,
        kv_format=kv_format,
        weight_dtype=weight_dtype,
        block_size=block_size,
        watermark=watermark,
        utilization=utilization,
    )
    if as_json:
        print_json(result.to_dict())
        return
    from rich.console import Console

    from kvhouse.views.plan import show_plan

    show_plan(Console(), result)
