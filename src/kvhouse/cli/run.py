"""``kvhouse run``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, engine_options, options
from kvhouse.cli.groups import given, grouped
from kvhouse.cli.output import plan_log, print_json, require_apart
from kvhouse.cli.progress import progress
from kvhouse.cli.sampling_options import SamplingOptions
from kvhouse.cli.trace_options import TraceOptions
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.engine import Completion, Engine, EngineConfig, SamplingParams, Token
    from kvhouse.engine.fast.paths import Paths


@dataclass(frozen=True, slots=True)
class RunOptions(engine_options.TieredOptions):
    """And whether there is a cache at all."""

    no_kv_cache: engine_options.NoCache = False

    def config(self, dtype: str) -> EngineConfig:
        """See ``EngineOptions.config``."""
        config = engine_options.TieredOptions.config(self, dtype)
        return replace(config, kv_cache=not self.no_kv_cache)


@grouped
def run_command(
    model: engine_options.RunModel,
    *,
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
    choosing: SamplingOptions,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End the answer before this text; repeatable."),
    ] = None,
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
    dtype: engine_options.Dtype = "float32",
    asked: RunOptions,
    taken: TraceOptions,
    backlog: options.Backlog = False,
    plan_log_file: options.PlanLog = None,
    as_json: options.AsJson = False,
) -> None:
    """Serve a real model on this machine's CPU: one prompt, or a whole trace.

    Example: kvhouse run smollm2 "Why is the sky blue?"

    Example: kvhouse run smollm2 --trace azure-conv-2023 --limit 8 --scale-lengths 0.1
    """
    if (prompt is None) == (trace is None):
        raise KvhouseError("give either a prompt or --trace")
    kept = asked.prefix_cache or asked.host_memory or asked.nvme_memory or asked.tier_directory
    if prompt is not None and (given(taken) or backlog or plan_log_file or kept):
        raise KvhouseError(
            "--limit, --scale-lengths, --backlog, --plan-log, --prefix-cache, tiers and all that "
            "choose from a trace go with --trace"
        )
    if trace is not None and (given(choosing) or stop or n != 1 or logprobs is not None or raw):
        raise KvhouseError("--temperature, --raw and all that say how to answer go with a prompt")
    if trace is not None and asked.no_kv_cache:
        raise KvhouseError("--no-kv-cache goes with a prompt")
    if logprobs is not None and not as_json:
        raise KvhouseError("--logprobs goes with --json")
    require_apart({"--plan-log": plan_log_file}, (trace, model))
    answering.require(model, choosing.max_new_tokens)

    from kvhouse.engine.traced import run_trace, scenario_for

    sampling = choosing.params(seed=seed, stop=stop or (), logprobs=logprobs)
    sampling.samples(n)
    config = answering.prepare(model, asked.config(dtype), dtype, share=n > 1)
    if prompt is not None:
        from kvhouse.engine import Engine

        engine = Engine(answering.load(model, dtype), config)
        ids = _prompt_ids(engine, prompt, raw)
        _answer(model, engine, ids, choosing.max_new_tokens, sampling, n, as_json)
        return
    traffic = taken.read(str(trace), as_json=as_json)
    loaded = answering.load(model, dtype)
    with (
        plan_log(plan_log_file) as on_plan,
        progress("run", len(traffic.requests), as_json=as_json) as on_ended,
    ):
        run = run_trace(
            loaded,
            scenario_for(config, loaded.spec, traffic, as_backlog=backlog, dtype=loaded.dtype),
            config,
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
