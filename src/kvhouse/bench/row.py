"""One batch, timed: requests of one length, all at once, and where their steps' time goes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvhouse import devices
from kvhouse.bench.row_result import Rate, RowResult, StepBytes, StepTimes
from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.prompts import Prompts
from kvhouse.replayer.results import Distribution
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.trace_request import TraceRequest

if TYPE_CHECKING:
    from kvhouse.engine import Engine, EngineConfig
    from kvhouse.engine.load import LoadedModel
    from kvhouse.engine.watch import StepWatch, WatchedStep

#: Of so many steps in which all decode one is split into its parts, this one.
_EVERY, _SPLIT = 4, 2
#: Tokens of the answer that warms up: kernels are compiled and pages touched before anything is
#: timed.
_WARM_UP = 4


class NothingMeasured(KvhouseError):
    """A bench was ended before it had anything to report."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What is timed.

    Attributes:
        concurrency: Requests, all submitted at once.
        prompt: Tokens of each prompt, random ones.
        generate: Tokens that each gets; the end of a sequence is ignored.

    Raises:
        KvhouseError: One of them is below 1.
    """

    concurrency: int
    prompt: int
    generate: int

    def __post_init__(self) -> None:
        if min(self.concurrency, self.prompt, self.generate) < 1:
            raise KvhouseError("--concurrency, --prompt and --generate are each at least 1")

    @property
    def length(self) -> int:
        """Tokens of a request in the end."""
        return self.prompt + self.generate

    def warm_up(self, token_budget: int) -> Batch:
        """As many requests, with prompts that fill one step at most and short answers."""
        prompt = min(self.prompt, max(1, token_budget // self.concurrency))
        return replace(self, prompt=prompt, generate=min(self.generate, _WARM_UP))

    def config(self, config: EngineConfig, layout: KVLayout) -> EngineConfig:
        """``config`` with a pool that holds exactly this batch, and limits that admit it."""
        held = layout.held_bytes(self.length, config.token_budget)
        return replace(
            config,
            kv_memory=self.concurrency * held,
            max_length=self.length,
            max_running=self.concurrency,
            watermark=0.0,
        )


@dataclass(frozen=True, slots=True)
class _Pass:
    """One time through.

    Attributes:
        first_tokens: Seconds from the submission to each request's first token.
        decode: The steps in which every request decoded, but for those that were split.
        split: Those that were.
    """

    first_tokens: list[float]
    decode: list[WatchedStep]
    split: list[WatchedStep]

    @property
    def prefill_seconds(self) -> float:
        """Until the last of the first tokens."""
        return max(self.first_tokens)

    @property
    def step_seconds(self) -> float:
        """Mean of the steps that were not split."""
        return statistics.fmean(step.seconds for step in self.decode)


def measure(
    loaded: LoadedModel,
    config: EngineConfig,
    batch: Batch,
    *,
    repeats: int = 3,
    seed: int = 0,
    on_step: Callable[[object], None] | None = None,
    stop: Stop | None = None,
) -> RowResult:
    """Time a batch several times over, after a warm-up.

    Args:
        loaded: The model.
        config: How the engine keeps KV; its memory and its limits follow from the batch.
        batch: What is timed.
        repeats: How many times.
        seed: Decides the prompts.
        on_step: Called for each step.
        stop: Ends it after the step under way; what was whole by then is given, if anything was.

    Raises:
        NothingMeasured: It was stopped before one pass was whole.
        KvhouseError: The engine cannot do this.
    """
    from kvhouse.engine import Engine
    from kvhouse.engine.watch import StepWatch

    if repeats < 1:
        raise KvhouseError("--repeats is at least 1")
    layout = KVLayout.of(loaded.spec, config.kv_format, config.block_size, dtype=loaded.dtype)
    engine = Engine(loaded, batch.config(config, layout))
    watch = StepWatch()
    engine.executor.watch = watch
    prompts = Prompts(seed, loaded.spec.vocab_size)
    device = devices.get(devices.LOCAL)
    stop = stop or Stop()
    _run(engine, watch, prompts, batch.warm_up(config.token_budget), stop)
    passes: list[_Pass] = []
    while len(passes) < repeats and not stop.asked:
        watch.steps.clear()
        done = _run(engine, watch, prompts, batch, stop, on_step)
        if done is not None:
            passes.append(done)
    stop.cut_short = len(passes) < repeats
    if not passes:
        raise NothingMeasured("ended before one pass was whole: nothing was measured")
    roofline = Roofline(loaded.spec, layout, device, loaded.dtype)
    times, moved = _decode(passes, roofline, split=loaded.kind == "packed")
    return RowResult(
        concurrency=batch.concurrency,
        prompt=batch.prompt,
        generate=batch.generate,
        policy=engine.config.policy,
        kv_format=config.kv_format,
        dtype=loaded.dtype,
        repeats=len(passes),
        partial=stop.cut_short,
        prefill_tokens_per_second=Rate.of(
            [batch.concurrency * batch.prompt / one.prefill_seconds for one in passes]
        ),
        decode_tokens_per_second=Rate.of(
            [batch.concurrency / one.step_seconds for one in passes if one.decode]
        ),
        first_token_seconds=Distribution.of([s for one in passes for s in one.first_tokens]),
        decode_step=times,
        decode_bytes=moved,
        bandwidth=device.bandwidth,
        bandwidth_source=device.source,
        kv_bytes=engine.kv.nbytes,
        paths=engine.paths,
    )


def _run(
    engine: Engine,
    watch: StepWatch,
    prompts: Prompts,
    batch: Batch,
    stop: Stop,
    on_step: Callable[[object], None] | None = None,
) -> _Pass | None:
    """Have the batch answered once; None where ``stop`` ended it."""
    from kvhouse.engine import SamplingParams

    asked = TraceRequest(0.0, batch.prompt, batch.generate)
    greedy = SamplingParams(ignore_eos=True)
    drawn = [prompts.of(asked) for _ in range(batch.concurrency)]
    waiting = {engine.submit(prompt, batch.generate, greedy) for prompt in drawn}
    live, steps = set(waiting), len(watch.steps)
    begun = ended = 0.0
    first_tokens: list[float] = []
    decode: list[WatchedStep] = []
    split: list[WatchedStep] = []
    while live:
        if stop.asked:
            for request in live:
                engine.cancel(request)
            return None
        all_decode = not waiting and len(live) == batch.concurrency
        watch.fine = all_decode and (len(decode) + len(split)) % _EVERY == _SPLIT
        with watch.step():
            output = engine.step()
        step = watch.steps[-1]
        begun, ended = watch.steps[steps].begun, step.ended
        if all_decode:
            (split if step.fine else decode).append(step)
        for token in output.tokens:
            if token.request in waiting:
                waiting.remove(token.request)
                first_tokens.append(ended - begun)
        live -= {completion.request for completion in output.completions}
        if on_step:
            on_step(step)
    return _Pass(first_tokens, decode, split)


def _decode(
    passes: Sequence[_Pass], roofline: Roofline, *, split: bool
) -> tuple[StepTimes | None, StepBytes | None]:
    """A step in which every request decodes: its parts, and its bytes; None without any."""
    parts = [step for one in passes for step in one.split]
    times = StepTimes.of(parts, split=split) if parts else None
    steps = [step for one in passes for step in one.decode]
    if not steps:
        return times, None
    costs = [roofline.step(step.plan) for step in steps if step.plan is not None]
    floor = statistics.fmean(cost.seconds for cost in costs)
    moved = StepBytes.of(
        weights=statistics.fmean(cost.weight_bytes for cost in costs),
        kv=statistics.fmean(cost.kv_read_bytes for cost in costs),
        bound=costs[-1].bound,
        floor_seconds=floor,
        steps=len(steps),
        seconds=statistics.fmean(step.seconds for step in steps),
        bandwidth=roofline.device.bandwidth,
    )
    return times, moved
