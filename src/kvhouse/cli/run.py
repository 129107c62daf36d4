"""``kvhouse run``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, engine_options, options
from kvhouse.cli.groups import given, grouped
from kvhouse.cli.output import require_apart
from kvhouse.cli.running import Run
from kvhouse.cli.sampling_options import SamplingOptions
from kvhouse.cli.trace_options import TraceOptions
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.engine import EngineConfig


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
    tiers = asked.host_memory or asked.nvme_memory or asked.tier_directory
    _refuse_misplaced(
        with_trace=trace is not None,
        answer=bool(given(choosing) or stop or n != 1 or logprobs is not None or raw),
        part=bool(given(taken) or backlog or plan_log_file or asked.prefix_cache or tiers),
        no_cache=asked.no_kv_cache,
    )
    if logprobs is not None and not as_json:
        raise KvhouseError("--logprobs goes with --json")
    require_apart({"--plan-log": plan_log_file}, (trace, model))
    answering.require(model, choosing.max_new_tokens)
    sampling = choosing.params(seed=seed, stop=stop or (), logprobs=logprobs)
    sampling.samples(n)
    config = answering.feasible_config(model, asked.config(dtype), dtype, share=n > 1)
    run = Run(model, config, dtype, as_json)
    if prompt is not None:
        run.answer(prompt, choosing.max_new_tokens, sampling, n, raw=raw)
    else:
        traffic = taken.read(str(trace), as_json=as_json)
        run.serve(traffic, str(trace), seed, as_backlog=backlog, plan_log_file=plan_log_file)


def _refuse_misplaced(*, with_trace: bool, answer: bool, part: bool, no_cache: bool) -> None:
    """Refuse options that are given and would do nothing.

    Args:
        with_trace: Whether a trace is served, and not a prompt answered.
        answer: Whether anything says how to answer.
        part: Whether anything chooses from a trace, or keeps what one prompt has no use for.
        no_cache: Whether there is to be no cache.

    Raises:
        KvhouseError: There is one.
    """
    if not with_trace and part:
        raise KvhouseError(
            "--limit, --scale-lengths, --backlog, --plan-log, --prefix-cache, tiers and all that "
            "choose from a trace go with --trace"
        )
    if with_trace and answer:
        raise KvhouseError("--temperature, --raw and all that say how to answer go with a prompt")
    if with_trace and no_cache:
        raise KvhouseError("--no-kv-cache goes with a prompt")
