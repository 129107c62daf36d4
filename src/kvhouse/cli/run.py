"""``kvhouse run``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options
from kvhouse.cli.output import plan_log, print_json, progress, require_apart
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_bytes

if TYPE_CHECKING:
    from kvhouse.engine import EngineConfig, SamplingParams
    from kvhouse.engine.load import LoadedModel

#: The pool of a run when none is given: enough for a few conversations on any machine.
DEFAULT_KV_MEMORY = "1GiB"

#: How keys and values are stored by default: as the model computes them.
_FORMAT_OF = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

#: The options that choose from a trace, as they are when none is given.
_WHOLE_TRACE = (None, 1.0, None, 1.0, 0.0, None, 1.0, 0)


def run_command(
    model: Annotated[
        str, typer.Argument(help="smollm2, a directory with safetensors, or a GGUF file.")
    ],
    prompt: Annotated[
        str | None, typer.Argument(help="What to answer. Leave it out with --trace.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="Serve a trace instead: a file, azure-conv-2023 or mooncake-conv, or generated "
            "traffic, as for replay. Prompts are random tokens of the trace's lengths."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="TOKENS", help="Longest answer to a prompt.")
    ] = 256,
    temperature: Annotated[
        float, typer.Option(help="0 takes the most likely token; higher is more varied.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Makes sampling and a trace's prompts repeatable.")] = 0,
    raw: Annotated[
        bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")
    ] = False,
    policy: options.Policy = "paged",
    kv_memory: Annotated[
        str,
        typer.Option("--kv-memory", metavar="SIZE", help="Memory for keys and values: 512MiB."),
    ] = DEFAULT_KV_MEMORY,
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16 or float16: weights and arithmetic.")
    ] = "float32",
    kv_format: Annotated[
        str | None,
        typer.Option("--kv-format", help="bf16, fp16 or fp32. By default as --dtype."),
    ] = None,
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
    block_size: options.BlockSize = 16,
    token_budget: options.TokenBudget = 2048,
    max_running: options.MaxRunning = 256,
    watermark: options.Watermark = 0.05,
    plan_log_file: options.PlanLog = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve a real model on this machine's CPU: one prompt, or a whole trace.

    Example: kvhouse run smollm2 "Why is the sky blue?"

    Example: kvhouse run smollm2 --trace azure-conv-2023 --limit 8 --scale-lengths 0.1
    """
    if (prompt is None) == (trace is None):
        raise KvhouseError("give either a prompt or --trace")
    taken = (limit, scale_lengths, cut, scale_rate, start, duration, sample, sample_seed)
    if prompt is not None and (taken != _WHOLE_TRACE or backlog or plan_log_file):
        raise KvhouseError(
            "--limit, --scale-lengths, --backlog, --plan-log and all that choose from a trace "
            "go with --trace"
        )
    if trace is not None and (temperature or raw):
        raise KvhouseError("--temperature and --raw go with a prompt")
    require_apart({"--plan-log": plan_log_file}, (trace, model))
    from kvhouse import spec

    spec.load(model)  # so that a wrong name is answered before torch is imported

    from kvhouse.engine import EngineConfig, SamplingParams
    from kvhouse.engine.traced import run_trace, scenario_for

    sampling = SamplingParams(temperature=temperature, seed=seed)
    config = EngineConfig(
        kv_memory=parse_bytes(kv_memory),
        kv_format=kv_format or _FORMAT_OF.get(dtype, dtype),
        policy=policy,
        block_size=block_size,
        max_length=max_length,
        token_budget=token_budget,
        max_running=max_running,
        watermark=watermark,
    )
    loaded = _load(model, dtype)
    if prompt is not None:
        _answer(loaded, config, _templated(loaded, prompt, raw), max_new_tokens, sampling, as_json)
        return
    from kvhouse.replayer import read_trace

    traffic = read_trace(
        str(trace),
        limit=limit,
        scale_lengths=scale_lengths,
        max_length=cut,
        scale_rate=scale_rate,
        start=start,
        duration=duration,
        sample=sample,
        seed=sample_seed,
    )
    with plan_log(plan_log_file) as on_plan, progress("run", len(traffic.requests)) as on_ended:
        run = run_trace(
            loaded,
            scenario_for(config, loaded.spec, traffic, as_backlog=backlog),
            seed=seed,
            on_ended=on_ended,
            on_plan=on_plan,
        )
    if as_json:
        print_json({"model": model, "device": "this machine", **run.to_dict()})
        return
    from rich.console import Console

    from kvhouse.views.replay import show_results

    show_results(
        Console(), f"{len(traffic.requests):,} requests of {trace} on this machine", [run.result]
    )


def _load(model: str, dtype: str) -> LoadedModel:
    """Load a model and say so: the first time a GGUF file is converted, which takes a while."""
    from rich.console import Console

    from kvhouse.engine.load import load_model

    with Console(stderr=True).status(f"loading {model}"):
        return load_model(model, dtype)


def _templated(loaded: LoadedModel, prompt: str, raw: bool) -> str:
    """The prompt as a user's turn in the model's own chat template, if it has one."""
    tokenizer = loaded.tokenizer
    if raw or tokenizer is None or not tokenizer.chat_template:
        return prompt
    turns = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def _answer(
    loaded: LoadedModel,
    config: EngineConfig,
    prompt: str,
    max_new_tokens: int,
    sampling: SamplingParams,
    as_json: bool,
) -> None:
    """Answer one prompt: token by token for a person, whole as JSON."""
    from kvhouse.engine import Engine

    engine = Engine(loaded, config)
    if as_json:
        (completion,) = engine.generate([prompt], max_new_tokens, sampling)
        print_json(asdict(completion))
        return
    for token in engine.stream(prompt, max_new_tokens, sampling):
        print(token.text, end="", flush=True)
    print()
