"""``kvhouse plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvhouse.cli import options
from kvhouse.cli.output import print_json, warn
from kvhouse.errors import KvhouseError
from kvhouse.units import counted

if TYPE_CHECKING:
    from kvhouse.planner.traffic import Traffic


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
    new_tokens: Annotated[
        int | None,
        typer.Option(
            "--new-tokens", metavar="TOKENS", help="How many of them are output; default a quarter."
        ),
    ] = None,
    max_length: options.MaxLength = None,
    kv_format: options.KvFormat = "bf16",
    weight_dtype: options.WeightDtype = None,
    block_size: options.BlockSize = 16,
    token_budget: options.TokenBudget = 2048,
    watermark: options.Watermark = 0.05,
    utilization: options.Utilization = 0.9,
    policy: options.Policy = "paged",
    tp: options.Tp = 1,
    mtp: Annotated[
        bool, typer.Option("--mtp", help="Count the KV of multi-token-prediction layers too.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Plan each of several models, devices and formats: lists with commas."
        ),
    ] = False,
    with_remedies: Annotated[
        bool, typer.Option("--remedies/--no-remedies", help="Try and rank what would help.")
    ] = True,
    shared_tokens: Annotated[
        int | None,
        typer.Option(
            "--shared-tokens", metavar="TOKENS", help="Tokens that all prompts begin with."
        ),
    ] = None,
    with_grid: Annotated[
        bool, typer.Option("--grid", help="Decode ceilings over batches and lengths.")
    ] = False,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="PER_SECOND",
            help="Requests a second: find the batch they make. With --context and --new-tokens, or "
            "faster or slower than --trace.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="TRACE", help="Take rate, lengths and shared prefixes from a trace."),
    ] = None,
    efficiency: Annotated[
        float, typer.Option(help="Share of the roofline that an engine reaches, for traffic.")
    ] = 1.0,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="Apply an engine's own rules: vllm, vllm-v0, sglang, llama.cpp, transformers, "
            "tensorrt-llm, tgi, …",
        ),
    ] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-option",
            metavar="NAME=VALUE",
            help="An option of that engine, such as version=0.11; may be repeated.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Size a model's KV cache: exact bytes, requests that fit, decode floors, and what helps.

    Example: kvhouse plan llama-2-7b --device a10-24g --context 500
    """
    case_options: dict[str, Any] = {
        "kv_memory": options.size(kv_memory),
        "context": context,
        "new_tokens": new_tokens,
        "max_length": max_length,
        "weight_dtype": weight_dtype,
        "block_size": block_size,
        "token_budget": token_budget,
        "watermark": watermark,
        "utilization": utilization,
        "tp": tp,
        "mtp": mtp,
    }
    if engine_option and engine is None:
        raise KvhouseError("--engine-option goes with --engine: name the engine")
    if efficiency != 1 and rate is None and trace is None:
        raise KvhouseError("--efficiency is for traffic: give --rate or --trace")
    if compare:
        _alone(
            policy=policy != "paged",
            shared_tokens=shared_tokens is not None,
            grid=with_grid,
            rate=rate is not None,
            trace=trace is not None,
            engine=engine is not None,
        )
        _compare(model, device, kv_format, case_options, as_json)
        return
    _one_of_each(model, device, kv_format)
    from kvhouse.planner.cases import case_for
    from kvhouse.planner.report import Questions, report

    case = case_for(model, device, kv_format=kv_format, policy=policy, **case_options)
    traffic, hit_share = _traffic(rate, trace, case.context, case.new_tokens)
    questions = Questions(
        remedies=with_remedies,
        shared_tokens=shared_tokens,
        hit_share=hit_share,
        grid=with_grid,
        traffic=traffic,
        efficiency=efficiency,
        engine=engine,
        engine_options=dict(options.pair(text) for text in engine_option or []),
    )
    result = report(case, questions)
    if as_json:
        print_json(result.to_dict())
        return
    from rich.console import Console

    from kvhouse.views.report import show_report

    show_report(Console(), result)


def _compare(
    models: str, devices: str, kv_formats: str, case_options: dict[str, Any], as_json: bool
) -> None:
    from kvhouse.planner.compare import compare

    lists = map(options.names, (models, devices, kv_formats))
    comparison = compare(*lists, **case_options)
    rows = comparison.rows
    failed = [row for row in rows if row.error]
    if len(failed) == len(rows):
        first = failed[0]
        raise KvhouseError(
            f"none of {counted(len(rows), 'combination')} can be planned; {first.model} on "
            f"{first.device} in {first.kv_format}: {first.error}"
        )
    if as_json:
        print_json(comparison.to_dict())
    else:
        from rich.console import Console

        from kvhouse.views.compare import show_comparison

        show_comparison(Console(), comparison)
    if failed:
        combinations = counted(len(rows), "combination")
        warn(f"{len(failed):,} of {combinations} cannot be planned; the output says why")


def _one_of_each(model: str, device: str, kv_format: str) -> None:
    """Refuse lists that only a comparison takes; a file's own name may have a comma.

    Raises:
        KvhouseError: One is a list.
    """
    for what, text in (("models", model), ("devices", device), ("KV formats", kv_format)):
        if len(options.names(text)) > 1 and not _exists(text):
            from kvhouse.spec.fields import show

            raise KvhouseError(f"{show(text)} is several {what}: add --compare for a row each")


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # such as a name that is too long for any file
        return False


def _alone(**given: bool) -> None:
    """Refuse what a comparison would leave unanswered."""
    for name, is_given in given.items():
        if is_given:
            option = "--" + name.replace("_", "-")
            raise KvhouseError(f"{option} does not go with --compare: plan one model with it")


def _traffic(
    rate: float | None, trace: str | None, context: int, new_tokens: int
) -> tuple[Traffic | None, float | None]:
    """The traffic that was named, if any, and how much of its prompts repeats, if that is known."""
    if rate is None and trace is None:
        return None, None
    from kvhouse.planner.traffic import Traffic

    if trace is None:
        return Traffic.given(rate or 0.0, max(1, context - new_tokens), new_tokens), None
    from dataclasses import replace

    from kvhouse.replayer.describe import describe
    from kvhouse.replayer.traces import TraceStream

    stream = TraceStream(trace)
    measured = Traffic.measured((r.arrival, r.prompt_tokens, r.output_tokens) for r in stream)
    traffic = measured if rate is None else replace(measured, rate=rate)
    return traffic, describe(stream).blocks.repeated_share
