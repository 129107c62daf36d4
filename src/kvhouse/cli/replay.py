"""``kvhouse replay``."""

from __future__ import annotations

from typing import Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.output import plan_log, print_json, progress


def replay_command(
    trace: options.Trace,
    model: Annotated[str, typer.Option(help="Catalogue name, directory, config or GGUF file.")],
    device: options.Device = "a100-80g",
    policy: options.Policy = "paged",
    kv_memory: options.KvMemory = None,
    limit: options.Limit = None,
    scale_lengths: options.ScaleLengths = 1.0,
    scale_rate: options.ScaleRate = 1.0,
    start: options.Start = 0.0,
    duration: options.Duration = None,
    sample: options.Sample = 1.0,
    sample_seed: options.SampleSeed = 0,
    cut: options.Cut = None,
    backlog: options.Backlog = False,
    max_length: options.MaxLength = None,
    kv_format: options.KvFormat = "bf16",
    weight_dtype: options.WeightDtype = None,
    block_size: options.BlockSize = 16,
    token_budget: options.TokenBudget = 2048,
    max_running: options.MaxRunning = 256,
    watermark: options.Watermark = 0.05,
    utilization: options.Utilization = 0.9,
    plan_log_file: options.PlanLog = None,
    as_json: options.AsJson = False,
) -> None:
    """Lead a traffic trace through the real scheduler and allocator on a modelled clock.

    Times are roofline floors. Bytes are exact; so are admissions and preemptions with --backlog,
    and otherwise they follow the modelled times.

    Example: kvhouse replay azure-conv-2023 --model llama-2-7b --kv-memory 8GiB
    """
    from kvhouse.replayer import read_trace, replay

    traffic = read_trace(
        trace,
        limit=limit,
        scale_lengths=scale_lengths,
        max_length=cut,
        scale_rate=scale_rate,
        start=start,
        duration=duration,
        sample=sample,
        seed=sample_seed,
    )
    with plan_log(plan_log_file) as on_plan, progress("replay", len(traffic.requests)) as on_ended:
        result = replay(
            traffic,
            model,
            device,
            kv_memory=options.size(kv_memory),
            policy=policy,
            kv_format=kv_format,
            weight_dtype=weight_dtype,
            block_size=block_size,
            max_length=max_length,
            token_budget=token_budget,
            max_running=max_running,
            watermark=watermark,
            utilization=utilization,
            as_backlog=backlog,
            on_ended=on_ended,
            on_plan=on_plan,
        )
    if as_json:
        print_json({"model": model, "device": device, **result.to_dict()})
        return
    from rich.console import Console

    from kvhouse.views.replay import show_results

    show_results(Console(), f"{len(traffic.requests):,} requests of {trace} on {device}", [result])
