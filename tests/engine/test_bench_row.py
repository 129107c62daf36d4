"""A batch timed: which steps count, where their time goes, and what they read."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from kvhouse.bench.engine_target import EngineTarget
from kvhouse.bench.load import send
from kvhouse.bench.row import Batch, measure
from kvhouse.bench.row_result import StepTimes
from kvhouse.cli import app
from kvhouse.engine import AsyncEngine, Engine, EngineConfig
from kvhouse.engine.load import load_model
from kvhouse.engine.watch import PARTS, StepWatch
from kvhouse.errors import KvhouseError
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.trace_request import TraceRequest

LAYERS = 3
#: Keys and values of llama-gqa: two KV heads of eight, in float32.
TOKEN_BYTES = 2 * LAYERS * 2 * 8 * 4


class Ticking:
    """A clock that goes on by one whenever it is looked at."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return float(next(self._ticks))


def test_a_watch_s_parts_are_what_passed_between_its_turns():
    moments = iter([10.0, 11.0, 15.0, 16.0, 30.0, 31.5])
    watch = StepWatch(lambda: next(moments))
    with watch.step():
        assert watch.turn("model") == "scheduling"
        assert watch.turn("attention") == "model"
        assert watch.turn("model") == "attention"
        assert watch.turn("sampling") == "model"
    (step,) = watch.steps
    parts = {"scheduling": 1.0, "model": 4.0 + 14.0, "attention": 1.0, "sampling": 1.5}
    assert step.parts == {**parts, "kv_writes": 0.0}
    assert (step.begun, step.ended, step.seconds) == (10.0, 31.5, 21.5)
    assert step.plan is None


def watched(engine, prompts, new_tokens):
    """Every step, and the tokens."""
    watch = engine.executor.watch = StepWatch(Ticking())
    for prompt in prompts:
        engine.submit(prompt, new_tokens)
    completions = []
    while engine.has_work:
        with watch.step():
            completions += engine.step().completions
    return watch.steps, [c.token_ids for c in sorted(completions, key=lambda c: c.request)]


def test_every_layer_s_attention_and_writing_is_told(tiny):
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    steps, tokens = watched(tiny(kernel="reference"), prompts, 4)
    assert tokens == [c.token_ids for c in tiny(kernel="reference").generate(prompts, 4)]
    for step in steps:
        writes = LAYERS * len(step.plan.rows)  # which it does row by row
        assert step.parts["kv_writes"] == writes
        assert step.parts["attention"] == LAYERS + writes
        assert sum(step.parts.values()) == step.seconds
        assert set(step.parts) == set(PARTS)


def test_the_compiled_kernel_tells_them_apart_too(smollm2_model):
    config = EngineConfig(kv_memory=2**24, kernel="numba")
    steps, _ = watched(Engine(smollm2_model, config), [[1, 2, 3], [4, 5, 6, 7]], 2)
    layers = smollm2_model.model.config.num_hidden_layers
    assert [step.parts["kv_writes"] for step in steps] == [layers] * 2
    assert [step.parts["attention"] for step in steps] == [layers] * 2


def test_a_batch_s_decode_steps_and_their_bytes(tiny_directory):
    loaded = load_model(tiny_directory("llama-gqa"))
    seen = []
    batch = Batch(3, 10, 6)
    config = EngineConfig(block_size=4, token_budget=64)
    result = measure(loaded, config, batch, repeats=2, on_step=seen.append)
    # All prompts fit one step, so each pass has that one and five in which all decode.
    assert len(seen) == 2 * 6
    # The third of them is split.
    assert (result.decode_step.steps, result.decode_bytes.steps) == (2 * 1, 2 * 4)
    assert [step.fine for step in seen] == [False, False, False, True, False, False] * 2
    assert result.repeats == 2
    assert not result.partial
    assert result.decode_bytes.kv == 3 * 12 * TOKEN_BYTES  # 10, 11, 13 and 14 tokens each
    # Matrices alone, the norms are left out; the embeddings are looked up and not read.
    matrices = [one for one in loaded.model.parameters() if one.dim() == 2]
    table = loaded.model.get_input_embeddings().weight
    read = sum(matrix.numel() for matrix in matrices) - table.numel()
    assert result.decode_bytes.weights == 4 * read
    assert result.kv_bytes == 3 * 4 * 4 * TOKEN_BYTES
    step = result.decode_step
    parts = step.model + step.attention + step.kv_writes + step.sampling + step.scheduling
    assert parts == pytest.approx(step.seconds)
    decode = [s for s in seen if len(s.plan.rows) == 3 and all(r.count == 1 for r in s.plan.rows)]
    plain = [step.seconds for step in decode if not step.fine]
    rates = sorted(3 * 4 / sum(each) for each in (plain[:4], plain[4:]))
    assert (result.decode_tokens_per_second.min, result.decode_tokens_per_second.max) == (
        pytest.approx(tuple(rates))
    )
    moved = result.decode_bytes
    assert moved.seconds == pytest.approx(sum(plain) / 8)
    assert moved.bytes_per_second == pytest.approx((moved.weights + moved.kv) / moved.seconds)
    assert moved.share_of_bandwidth == pytest.approx(moved.bytes_per_second / result.bandwidth)
    assert moved.share_of_floor == pytest.approx(moved.floor_seconds / moved.seconds)


@pytest.mark.parametrize("policy", ["paged", "contiguous-max"])
def test_steps_in_which_prompts_are_still_computed_do_not_count(tiny_directory, policy):
    loaded = load_model(tiny_directory("llama-gqa"))
    seen = []
    config = EngineConfig(block_size=4, token_budget=8, policy=policy)
    result = measure(loaded, config, Batch(3, 10, 6), repeats=1, on_step=seen.append)
    rows = [step.plan.rows for step in seen]
    full = [each for each in rows if len(each) == 3 and all(row.first >= 10 for row in each)]
    # It begins after the last prompt's step; a request that began earlier ends earlier.
    assert 0 < result.decode_bytes.steps == len(full) < 5
    assert sum(row.count for each in rows for row in each) == 3 * (10 + 5)


def test_a_batch_without_a_step_of_all_has_no_decode_figures(tiny_directory):
    loaded = load_model(tiny_directory("llama-gqa"))
    result = measure(loaded, EngineConfig(block_size=4), Batch(2, 10, 1), repeats=1)
    assert result.decode_step is None
    assert result.decode_bytes is None
    assert result.decode_tokens_per_second is None
    assert result.prefill_tokens_per_second.median > 0
    assert result.first_token_seconds.max > 0


def test_a_batch_that_is_stopped_gives_its_whole_passes(tiny_directory):
    loaded = load_model(tiny_directory("llama-gqa"))
    stop, steps = Stop(), []

    def on_step(step):
        steps.append(step)
        stop.asked = len(steps) == 8

    config = EngineConfig(block_size=4)
    result = measure(loaded, config, Batch(2, 10, 6), repeats=3, on_step=on_step, stop=stop)
    assert (result.repeats, result.partial, stop.cut_short) == (1, True, True)
    assert result.decode_bytes.steps == 4
    with pytest.raises(KvhouseError, match="nothing was measured"):
        measure(loaded, config, Batch(2, 10, 6), stop=Stop(asked=True))


def test_where_the_model_s_own_attention_runs_its_time_is_not_told_apart(tiny_directory):
    loaded = replace(load_model(tiny_directory("llama-gqa")), kind="per_sequence")
    result = measure(loaded, EngineConfig(block_size=4), Batch(2, 5, 5), repeats=1)
    step = result.decode_step
    assert (step.attention, step.kv_writes) == (None, None)
    assert step.model + step.sampling + step.scheduling == pytest.approx(step.seconds)


def test_times_that_cannot_be_told_apart_are_the_model_s():
    watch = StepWatch(Ticking())
    with watch.step():
        for part in ("model", "attention", "model", "kv_writes", "sampling"):
            watch.turn(part)
    whole = StepTimes.of(watch.steps, split=False)
    assert (whole.model, whole.attention, whole.kv_writes) == (4.0, None, None)
    apart = StepTimes.of(watch.steps, split=True)
    assert (apart.model, apart.attention, apart.kv_writes) == (2.0, 1.0, 1.0)


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_batch_of_nothing_is_refused(wrong):
    with pytest.raises(KvhouseError, match="at least 1"):
        Batch(*wrong)


def test_a_load_to_the_engine_here_gets_every_token(tiny):
    asked = [TraceRequest(0.0, 5, 4), TraceRequest(0.01, 9, 6), TraceRequest(0.02, 7, 10_000)]

    async def run():
        async with AsyncEngine(tiny(blocks=12)) as serving:
            target = EngineTarget(serving, "tiny")
            await target.warm_up()
            sent = await send(target, asked)
            memory = serving.engine.scheduler.memory
            assert memory.free_blocks == memory.total_blocks
            return sent.records

    records = asyncio.run(run())
    assert [record.error for record in records] == [None, None, "rejected"]
    assert [record.output_tokens for record in records] == [4, 6, 0]
    assert [len(record.gaps) for record in records[:2]] == [3, 5]
    assert "blocks" in records[2].reason or "tokens" in records[2].reason


def test_a_step_whose_logits_are_not_finite_is_watched_to_its_end(tiny, monkeypatch):
    engine = tiny()
    watch = engine.executor.watch = StepWatch(Ticking())
    nothing = torch.full((1, engine.spec.vocab_size), torch.nan)
    monkeypatch.setattr(engine.executor.adapter, "forward", lambda _: nothing)
    engine.submit([1, 2], 3)
    with watch.step():
        (completion,) = engine.step().completions
    assert completion.error is not None
    parts = {"scheduling": 2.0, "model": 1.0, "sampling": 1.0}
    assert watch.steps[0].parts == {"attention": 0.0, "kv_writes": 0.0, **parts}


def bench(*arguments):
    done = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_times_a_batch(tiny_directory, tmp_path):
    directory, out = tiny_directory("llama-gqa"), tmp_path / "b.json"
    size = ("--concurrency", 2, "--prompt", 6, "--generate", 4, "--repeats", 2, "--block-size", 4)
    figures = json.loads(bench(directory, *size, "--kv-format", "int8", "--json", "--out", out))
    assert (figures["concurrency"], figures["prompt"], figures["generate"]) == (2, 6, 4)
    assert (figures["kv_format"], figures["policy"], figures["dtype"]) == (
        "int8",
        "paged",
        "float32",
    )
    assert (figures["decode_step"]["steps"], figures["decode_bytes"]["steps"]) == (2, 4)
    assert figures["paths"]["fast"] == LAYERS
    plain = json.loads(bench(directory, *size, "--no-fast-path", "--json"))
    assert (plain["paths"]["fast"], plain["paths"]["reason"]) == (0, "the fast path is off")
    # Eight bytes and a scale of two for each of two heads; 6 and 7 tokens each.
    assert figures["decode_bytes"]["kv"] == 2 * 6.5 * 2 * LAYERS * 2 * 10
    assert json.loads(out.read_text()) == figures
    text = " ".join(bench(directory, *size).split())
    for words in ("2 × (6 in, 4 out)", "attention", "kv writes", "The floor of such a step is"):
        assert words in text
    assert "larger --generate" in bench(directory, *size[:4], "--generate", 1, "--repeats", 1)


def test_the_command_sends_a_load_to_a_model_here(tiny_directory):
    load = ("--concurrency", 2, "--requests", 5, "--prompt", 6, "--generate", 4)
    tiers = ("--prefix-cache", "--watermark", 0.2, "--host-memory", "1MiB")
    figures = json.loads(bench(tiny_directory("llama-gqa"), *load, *tiers, "--json"))
    assert figures["paths"]["fast"] == LAYERS
    assert (figures["target"], figures["mode"]) == ("engine", "closed")
    assert (figures["finished"], figures["prompt_tokens"], figures["output_tokens"]) == (5, 30, 20)
    text = bench(tiny_directory("llama-gqa"), "--rate", 1000, "--requests", 3, "--prompt", 6)
    assert "3 answered, 0 failed, 0 cut off; 384 tokens (counted by the target)." in text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--watermark", "1.5"), "watermark"),
        (("--host-memory", "0"), "a size of 0"),
        (("--nvme-memory", "1MiB", "--policy", "contiguous-max"), "paged"),
    ],
)
def test_a_load_s_engine_is_told_what_run_s_is(tiny_directory, given, reason):
    load = ("--rate", "9", "--requests", "1", "--prompt", "6", "--generate", "2")
    arguments = ["bench", str(tiny_directory("llama-gqa")), *load, *given]
    with pytest.raises(KvhouseError, match=reason):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    with pytest.raises(KvhouseError, match=f"{given[0]} goes with a load"):
        CliRunner().invoke(app, [*arguments[:2], *given], catch_exceptions=False)
