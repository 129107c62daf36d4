"""``kvhouse run``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, engine_options, options, tier_options
from kvhouse.cli.output import plan_log, print_json, require_apart
from kvhouse.cli.progress import progress
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_bytes

if TYPE_CHECKING:
    from kvhouse.engine import Completion, Engine, SamplingParams, Token
    from kvhouse.engine.fast.paths import Paths

#: Tokens of the longest answer when none is given.
_LONGEST = 256

#: The options that choose from a trace, as they are when none is given.
_WHOLE_TRACE = (None, 1.0, None, 1.0, 0.0, None, 1.0, 0)
#: Those that say how to answer a prompt, beside ``--temperature`` and ``--raw``.
_PLAIN = (_LONGEST, 0, 1.0, 0.0, 1.0, (), 1, None)


def run_command(
    model: engine_options.RunModel,
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
    max_new_tokens: engine_options.MaxNewTokens = _LONGEST,
    temperature: engine_options.Temperature = 0.0,
    top_k: engine_options.TopK = 0,
    top_p: engine_options.TopP = 1.0,
    min_p: engine_options.MinP = 0.0,
    repetition_penalty: engine_options.RepetitionPenalty = 1.0,
    stop: engine_options.Stop = None,
    n: Annotated[
        int,
        typer.Option("--n", metavar="N", help="Give so many answers, which share their prompt."),
    ] = 1,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="With --json: log-probabilities of each token and the N likeliest."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Makes sampling and a trace's prompts repeatable.")] = 0,
    raw: Annotated[
        bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")
    ] = False,
    policy: options.Policy = "paged",
    kv_memory: engine_options.EngineMemory = answering.DEFAULT_KV_MEMORY,
    dtype: engine_options.Dtype = "float32",
    kv_format: engine_options.EngineFormat = None,
    kv_rotation: engine_options.Rotation = None,
    no_kv_cache: engine_options.NoCache = False,
    fast_path: engine_options.FastPath = True,
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
    prefix_cache: options.PrefixCache = False,
    host_memory: tier_options.HostMemory = None,
    nvme_memory: tier_options.NvmeMemory = None,
    tier_directory: engine_options.TierDirectory = None,
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
    kept = prefix_cache or host_memory or nvme_memory or tier_directory
    if prompt is not None and (taken != _WHOLE_TRACE or backlog or plan_log_file or kept):
        raise KvhouseError(
            "--limit, --scale-lengths, --backlog, --plan-log, --prefix-cache, tiers and all that "
            "choose from a trace go with --trace"
        )
    stops = tuple(stop or ())
    plain = (max_new_tokens, top_k, top_p, min_p, repetition_penalty, stops, n, logprobs) == _PLAIN
    if trace is not None and (temperature or raw or not plain):
        raise KvhouseError("--temperature, --raw and all that say how to answer go with a prompt")
    if trace is not None and (kv_rotation is not None or no_kv_cache):
        raise KvhouseError("--kv-rotation and --no-kv-cache go with a prompt")
    if logprobs is not None and not as_json:
        raise KvhouseError("--logprobs goes with --json")
    require_apart({"--plan-log": plan_log_file}, (trace, model))
    answering.require(model, max_new_tokens)

    from kvhouse.engine import EngineConfig, SamplingParams
    from kvhouse.engine.traced import run_trace, scenario_for
    from kvhouse.replayer.tiering import Tiering

    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stops,
        seed=seed,
        logprobs=logprobs,
    )
    sampling.samples(n)
    config = answering.prepare(
        model,
        EngineConfig(
            kv_memory=parse_bytes(kv_memory),
            kv_format=answering.format_of(kv_format, dtype),
            kv_rotation=kv_rotation,
            kv_cache=not no_kv_cache,
            fast_path=fast_path,
            policy=policy,
            block_size=block_size,
            max_length=max_length,
            token_budget=token_budget,
            max_running=max_running,
            watermark=watermark,
            prefix_cache=prefix_cache,
            tiering=Tiering(options.size(host_memory), nvme_memory=options.size(nvme_memory)),
            tier_directory=tier_directory,
        ),
        dtype,
        share=n > 1,
    )
    loaded = answering.load(model, dtype)
    if prompt is not None:
        from kvhouse.engine import Engine

        engine = Engine(loaded, config)
        ids = _prompt_ids(engine, prompt, raw)
        _answer(model, engine, ids, max_new_tokens, sampling, n, as_json)
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
    with (
        plan_log(plan_log_file) as on_plan,
        progress("run", len(traffic.requests), as_json=as_json) as on_ended,
    ):
        run = run_trace(
            loaded,
            scenario_for(config, loaded.spec, traffic, as_backlog=backlog, dtype=loaded.dtype),
            seed=seed,
            tier_directory=tier_directory,
            fast_path=fast_path,
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


def _prompt_ids(engine: Engine, prompt: str, raw: bool) -> list[int]:
    """The prompt as a user's turn in the model's own chat template, if it has one."""
    if raw or engine.tokenizer is None or not engine.tokenizer.chat_template:
        return engine.prompt_ids(prompt)
    return engine.chat_prompt([{"role": "user", "content": prompt}])


def _answer(
    model: str,
    engine: Engine,
    prompt: list[int],
    max_new_tokens: int,
    sampling: SamplingParams,
    n: int,
    as_json: bool,
) -> None:
    """Answer one prompt: token by token for a person, whole as JSON."""
    streamed = n == 1 and not as_json

    def show(token: Token) -> None:
        if streamed:
            print(token.text, end="", flush=True)

    usage = answering.Usage(len(prompt))
    completions = answering.answer(engine, prompt, max_new_tokens, sampling, usage, show, n)
    if as_json:
        print_json(answers_to_dict(model, completions, usage, engine.paths))
        return
    if streamed:
        print()
    else:
        print("\n\n".join(f"[{c.sample + 1}/{n}] {c.text}" for c in completions))
    for completion in completions:
        if completion.error is not None:
            raise KvhouseError(completion.error)
    answering.say(f"{usage.line()}\n{engine.paths.line()}")


def answers_to_dict(
    model: str, completions: list[Completion], usage: answering.Usage, paths: Paths
) -> dict[str, object]:
    """What ``--json`` prints of a prompt's answers."""
    return {
        "model": model,
        "completions": [asdict(completion) for completion in completions],
        "usage": usage.to_dict(),
        "paths": paths.to_dict(),
    }
