"""Hybrids served by the engine: transformers' own answers, out of a pool that is too small."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.engine import Engine, EngineConfig, SamplingParams
from kvhouse.engine.load import LoadedModel
from kvhouse.engine.traced import run_trace, scenario_for
from kvhouse.errors import UnsupportedModel
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.replayer import Scenario
from kvhouse.replayer.arrivals import SteppedArrivals
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.traces import Trace, TraceRequest

pytestmark = pytest.mark.filterwarnings("ignore")

NEW = 14
GREEDY = SamplingParams(ignore_eos=True)


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(5)
    return [rng.choices(range(5, 60), k=rng.randint(1, 24)) for _ in range(count)]


def own_answers(model, asked) -> list[tuple[int, ...]]:
    """What transformers generates; no token ends an answer early."""
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in asked:
        ids = torch.tensor([prompt])
        got = model.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        answers.append(tuple(got[0, len(prompt) :].tolist()))
    return answers


def memory_for(loaded, requests: float) -> int:
    """Bytes in which so many of the longest requests have room."""
    layout = KVLayout.of(loaded.spec, "fp32", 4, dtype="float32")
    return int(requests * layout.held_bytes(24 + NEW, 8))


@pytest.fixture
def tight(monkeypatch) -> Callable[[LoadedModel], PoolSize]:
    """Pools with four slots and blocks for less than two of the longest requests.

    A pool that is cut for the longest requests has no more slots than it has room for, so nobody
    would ever be preempted in it.
    """

    def build(loaded: LoadedModel) -> PoolSize:
        layout = KVLayout.of(loaded.spec, "fp32", 4, dtype="float32")
        size = PoolSize(layout.blocks_for(24 + NEW, 8) * 7 // 4, 4)
        monkeypatch.setattr(KVLayout, "pool_in", lambda *_: size)
        return size

    return build


@pytest.mark.parametrize("model_type", ["jamba", "qwen3_next", "zaya", "mamba2"])
def test_answers_are_transformers_own(architecture, tight, model_type):
    loaded = architecture(model_type)
    asked = prompts(6)
    want = own_answers(loaded.model, asked)
    size = tight(loaded)
    config = EngineConfig(
        2**20, block_size=4, max_length=24 + NEW, token_budget=8, watermark=0.0, checked=True
    )
    engine = Engine(loaded, config)
    assert engine.kv.size == size
    engine.kv.states.fill_(255)
    ids = [engine.submit(prompt, NEW, GREEDY) for prompt in asked]
    requests = list(engine.scheduler.waiting)
    done = {}
    while engine.has_work:
        done |= {c.request: c.token_ids for c in engine.step().completions}
    assert [done[i] for i in ids] == want
    if engine.kv.layout.groups:
        assert sum(request.preemptions for request in requests) > 0
    assert engine.scheduler.memory.slots.free_blocks == engine.kv.size.slots


def test_a_request_that_gives_nan_leaves_nothing_to_the_next_in_its_slot(architecture):
    loaded = architecture("qwen3_next")
    (want,) = own_answers(loaded.model, [[9, 8, 7]])
    embeddings = loaded.model.get_input_embeddings().weight
    embeddings.data[70] = torch.nan
    config = EngineConfig(
        memory_for(loaded, 1), block_size=4, max_length=24 + NEW, token_budget=8, checked=True
    )
    engine = Engine(loaded, config)
    assert engine.kv.size.slots == 1
    poisoned, healthy = engine.generate([[5, 70, 6], [9, 8, 7]], NEW, GREEDY)
    assert poisoned.error is not None
    assert healthy.token_ids == want


@pytest.mark.parametrize("model_type", ["jamba", "qwen3_next"])
def test_a_request_that_gives_nan_ends_alone(architecture, model_type):
    """Those that decode with it in one forward pass are not touched."""
    loaded = architecture(model_type)
    asked = prompts(3)
    want = own_answers(loaded.model, asked)
    config = EngineConfig(
        memory_for(loaded, 6), block_size=4, max_length=24 + NEW, token_budget=64, checked=True
    )
    engine = Engine(loaded, config)
    assert loaded.continuation is not None
    assert loaded.continuation.together
    ids = [engine.submit(prompt, NEW, GREEDY) for prompt in [*asked, [5, 6]]]
    engine.step()
    last = next(iter(engine.scheduler.running[-1:]))
    slot = engine.scheduler.memory.holding(last.id).slot
    engine.kv.states[slot] = 255
    done = {}
    while engine.has_work:
        done |= {c.request: c for c in engine.step().completions}
    assert done[ids[-1]].error is not None
    assert [done[i].token_ids for i in ids[:-1]] == want


def test_an_interrupted_step_does_not_change_the_answer(architecture, monkeypatch):
    loaded = architecture("jamba")
    asked = prompts(4)
    want = own_answers(loaded.model, asked)
    config = EngineConfig(
        memory_for(loaded, 6), block_size=4, max_length=24 + NEW, token_budget=9, checked=True
    )
    engine = Engine(loaded, config)
    ids = [engine.submit(prompt, NEW, GREEDY) for prompt in asked]
    execute = type(engine.executor).execute
    steps = 0

    def interrupted(self, plan):
        nonlocal steps
        steps += 1
        result = execute(self, plan)
        if steps % 3 == 0:  # when all is computed and nothing of it is taken in yet
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(type(engine.executor), "execute", interrupted)
    done = {}
    while engine.has_work:
        try:
            done |= {c.request: c.token_ids for c in engine.step().completions}
        except KeyboardInterrupt:
            continue
    assert steps > 20
    assert [done[i] for i in ids] == want


def arrivals(requests):
    return SteppedArrivals([(3 * (index // 4), request) for index, request in enumerate(requests)])


@pytest.mark.parametrize("model_type", ["jamba", "zamba2", "rwkv"])
def test_replay_and_engine_plan_alike(architecture, tight, model_type):
    loaded = architecture(model_type)
    tight(loaded)
    rng = random.Random(3)
    lengths = [(rng.randint(1, 24), rng.randint(1, NEW)) for _ in range(16)]
    trace = Trace("random", tuple(TraceRequest(0.0, prompt, new) for prompt, new in lengths))
    layout = KVLayout.of(loaded.spec, "fp32", 4, dtype="float32")
    limits = SchedulerConfig(24 + NEW, token_budget=8, checked=True)
    scenario = Scenario(trace, layout, "paged", 2**20, limits, 0.0, arrivals)
    device = Device("d", "A device", 2**30, 1e9, {"float32": 1e9}, "datasheet", "")
    modelled, real = [], []
    executor = ModelledExecutor(Roofline(loaded.spec, layout, device, "float32"))
    predicted = scenario.drive(executor, on_plan=lambda plan: modelled.append(plan.encode()))
    run = run_trace(
        loaded, scenario, EngineConfig(), on_plan=lambda plan: real.append(plan.encode())
    )
    assert modelled == real
    assert len(real) > 16
    assert run.kv_bytes == predicted.pool.bytes
    if layout.groups:
        assert predicted.preemptions > 0


def test_states_are_laid_out_in_what_the_model_computes_in(architecture):
    """A config of bfloat16 weights that are loaded as float32 keeps its convolutions in float32."""
    loaded = architecture("jamba", dtype="bfloat16")
    assert loaded.spec.dtype == "bfloat16"
    layout = KVLayout.of(loaded.spec, "fp32", 4, dtype="float32")
    config = EngineConfig(2**20, block_size=4, max_length=40)
    assert Engine(loaded, config).kv.layout.slot_bytes == layout.slot_bytes
    trace = Trace("one", (TraceRequest(0.0, 5, 5),))
    assert scenario_for(config, loaded.spec, trace, dtype=loaded.dtype).layout == layout
    assert KVLayout.of(loaded.spec, "fp32", 4).slot_bytes < layout.slot_bytes


def test_prefixes_of_a_model_with_states_are_not_shared(architecture):
    config = EngineConfig(2**20, block_size=4, max_length=40, prefix_cache=True)
    with pytest.raises(UnsupportedModel, match="its state is one sum over all tokens"):
        Engine(architecture("jamba"), config)


def test_a_contiguous_pool_serves_hybrids_as_well(architecture):
    loaded = architecture("zamba2")
    asked = prompts(3)
    want = own_answers(loaded.model, asked)
    config = EngineConfig(2**20, block_size=4, max_length=40, policy="contiguous", checked=True)
    got = Engine(loaded, config).generate(asked, NEW, GREEDY)
    assert [completion.token_ids for completion in got] == want


@pytest.mark.parametrize("model_type", ["falcon_h1", "qwen3_next"])
def test_a_saved_hybrid_is_loaded_and_served(architecture, tmp_path, model_type):
    model = architecture(model_type).model
    model.save_pretrained(tmp_path)
    (want,) = own_answers(model, [[9, 8, 7, 6, 5]])
    config = EngineConfig(2**20, block_size=4, max_length=40, token_budget=3)
    (got,) = Engine.load(tmp_path, config).generate([[9, 8, 7, 6, 5]], NEW, GREEDY)
    assert got.token_ids == want
