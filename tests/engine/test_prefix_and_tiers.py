"""A shared prefix skips work, tiers bring back what the pool lost, and no answer ever changes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.cli import app
from kvhouse.core.tiers import always
from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.engine import Engine, EngineConfig, SamplingParams
from kvhouse.engine import tiering as tiering_module
from kvhouse.engine.load import load_model
from kvhouse.engine.tier_stores import FileStore, HostStore
from kvhouse.engine.tiering import tiers_below
from kvhouse.engine.traced import run_trace, scenario_for
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.prompts import Prompts
from kvhouse.replayer.tiering import Tiering
from kvhouse.replayer.traces import Trace, TraceRequest
from kvhouse.spec import load as load_spec

BLOCK_BYTES = 4 * 2 * 3 * 2 * 8 * 4  # tokens, K and V, layers, KV heads, head_dim, fp32
TO_THE_END = SamplingParams(ignore_eos=True)


def ids(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(97) for _ in range(count)]


def tiers(host: int | None = None, files: int | None = None, **options) -> Tiering:
    """Tiers of so many blocks, with links that need not be measured."""
    return Tiering(
        host and host * BLOCK_BYTES,
        host and 1e9,
        files and files * BLOCK_BYTES,
        files and 1e9,
        **options,
    )


class Counted:
    """How many tokens an engine computes."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tokens = 0
        execute = engine.executor.execute

        def counting(plan):
            self.tokens += plan.tokens
            return execute(plan)

        monkeypatch.setattr(engine.executor, "execute", counting)


def test_a_hit_skips_the_prefix_and_answers_the_same(tiny, monkeypatch):
    shared, tails = ids(41, 0), [ids(5, seed) for seed in (1, 2)]
    plain = tiny().generate([shared + tail for tail in tails], 9, TO_THE_END)
    engine = tiny(prefix_cache=True)
    counted = Counted(engine, monkeypatch)
    for tail, want in zip(tails, plain, strict=True):
        counted.tokens = 0
        (got,) = engine.generate([shared + tail], 9, TO_THE_END)
        assert got.token_ids == want.token_ids
    # 40 of the 41 shared tokens fill blocks of 4; 6 of the prompt and 8 of the answer are left.
    assert counted.tokens == 6 + 8


def test_an_answer_is_a_prefix_of_the_next_turn(tiny, monkeypatch):
    engine = tiny(prefix_cache=True)
    (first,) = engine.generate([ids(10, 0)], 15, TO_THE_END)
    turn = [*ids(10, 0), *first.token_ids, *ids(3, 1)]
    counted = Counted(engine, monkeypatch)
    (got,) = engine.generate([turn], 4, TO_THE_END)
    assert counted.tokens == 28 - 24 + 3  # 24 of the 25 known tokens were computed and sealed
    assert got.token_ids == tiny().generate([turn], 4, TO_THE_END)[0].token_ids


def test_tenants_share_nothing(tiny, monkeypatch):
    engine = tiny(prefix_cache=True)
    counted = Counted(engine, monkeypatch)
    tokens = []
    for salt in ("red", "blue", None, "red"):
        counted.tokens = 0
        engine.submit(ids(21, 0), 2, TO_THE_END, salt=salt)
        while engine.has_work:
            engine.step()
        tokens.append(counted.tokens)
    assert tokens == [22, 22, 22, 2]


@pytest.mark.parametrize(
    "tiering",
    [
        tiers(host=40),
        tiers(files=40),
        tiers(host=6, files=40),
        tiers(host=40, write="through"),
        tiers(host=9, files=12, replacement="arc"),
    ],
    ids=["host", "files", "both", "through", "arc"],
)
def test_preempted_requests_come_back_from_tiers(tiny, tmp_path, tiering):
    prompts = [ids(12, seed) for seed in range(6)]
    plain = tiny().generate(prompts, 20, TO_THE_END)
    engine = tiny(
        blocks=17, tiering=tiering, tier_directory=tmp_path, load_rule=always, prefix_cache=True
    )
    for _ in range(2):
        got = engine.generate(prompts, 20, TO_THE_END)
        assert [c.token_ids for c in got] == [c.token_ids for c in plain]
    assert engine.scheduler.memory.tiers is not None
    assert sum(tier.counters.loaded for tier in engine.scheduler.memory.tiers) > 10


def spoil(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[:-1])
    elif how == "longer":
        path.write_bytes(content + b"\0")
    elif how == "empty":
        path.write_bytes(b"")
    else:
        content[-100] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["missing", "truncated", "longer", "empty", "flipped"])
def test_a_spoiled_file_is_a_miss(tiny, tmp_path, how):
    """All blocks lie in files; half of them are spoiled between two rounds of the same prompts."""
    prompts = [ids(30, seed) for seed in range(3)]
    plain = tiny().generate(prompts, 6, TO_THE_END)
    engine = tiny(
        blocks=9,
        tiering=tiers(files=60, write="through"),
        tier_directory=tmp_path,
        load_rule=always,
        prefix_cache=True,
    )
    engine.generate(prompts, 6, TO_THE_END)
    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) > 12
    for path in files[::2]:
        spoil(path, how)
    got = engine.generate(prompts, 6, TO_THE_END)
    assert [c.token_ids for c in got] == [c.token_ids for c in plain]
    (tier,) = engine.scheduler.memory.tiers or ()
    assert tier.counters.failed > 0
    assert tier.counters.loaded > 0


def test_a_full_disk_loses_nothing_but_the_tier(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(FileStore, "path", lambda self, slot: self.directory / "no" / str(slot))
    prompts = [ids(12, seed) for seed in range(6)]
    plain = tiny().generate(prompts, 20, TO_THE_END)
    engine = tiny(blocks=17, tiering=tiers(files=40), tier_directory=tmp_path, load_rule=always)
    got = engine.generate(prompts, 20, TO_THE_END)
    assert [c.token_ids for c in got] == [c.token_ids for c in plain]
    (tier,) = engine.scheduler.memory.tiers or ()
    assert tier.counters.failed > 0
    assert tier.counters.loaded == 0


@pytest.mark.parametrize("kind", ["host", "files"])
def test_a_store_gives_back_what_was_written_last(tmp_path, kind):
    store = HostStore(3, 64) if kind == "host" else FileStore(tmp_path, 64)
    for value in (1, 2):
        assert store.write(2, torch.full((64,), value, dtype=torch.uint8))
    assert store.write(0, torch.arange(64, dtype=torch.uint8))
    assert store.read(2).tolist() == [2] * 64
    assert store.read(0).tolist() == list(range(64))


def test_a_file_of_an_earlier_writing_is_a_miss(tmp_path):
    store = FileStore(tmp_path, 64)
    store.write(5, torch.ones(64, dtype=torch.uint8))
    old = store.path(5).read_bytes()
    store.write(5, torch.zeros(64, dtype=torch.uint8))
    store.path(5).write_bytes(old)
    assert store.read(5) is None


def test_a_directory_that_is_not_there_is_refused(tiny, tmp_path):
    with pytest.raises(KvhouseError, match=r"no place for a tier's files: .*missing"):
        tiny(tiering=tiers(files=4), tier_directory=tmp_path / "missing")


def test_a_directory_goes_with_its_store(tmp_path):
    store = FileStore(tmp_path, 64)
    store.write(0, torch.ones(64, dtype=torch.uint8))
    assert len(list(tmp_path.iterdir())) == 1
    del store
    assert list(tmp_path.iterdir()) == []


def test_links_are_measured_where_they_are_not_given(tiny_directory, tmp_path):
    """Both tiers work with nothing said but their sizes; what pays is this machine's matter."""
    loaded = load_model(tiny_directory("llama-gqa"))
    tiering = Tiering(host_memory=8 * BLOCK_BYTES, nvme_memory=20 * BLOCK_BYTES)
    config = EngineConfig(
        kv_memory=17 * BLOCK_BYTES,
        block_size=4,
        tiering=tiering,
        tier_directory=tmp_path,
        checked=True,
    )
    trace = Trace("one", (TraceRequest(0.0, 5, 5),))
    scenario = scenario_for(config, loaded.spec, trace)
    assert [tier.link.bandwidth > 1e6 for tier in scenario.tiers] == [True, True]
    prompts = [ids(12, seed) for seed in range(6)]
    got = Engine(loaded, config).generate(prompts, 20, TO_THE_END)
    plain = Engine(loaded, EngineConfig(2**20, block_size=4)).generate(prompts, 20, TO_THE_END)
    assert [c.token_ids for c in got] == [c.token_ids for c in plain]


@pytest.mark.parametrize(("dtype", "pays"), [("float32", True), ("bfloat16", False)])
def test_what_pays_goes_by_the_rate_of_the_model_s_dtype(monkeypatch, dtype, pays):
    """A hundred tokens of SmolLM2 take 21 GFLOP: 2.1 s in float32 here, and 0.02 in bfloat16."""
    rates = {"float32": 1e10, "bfloat16": 1e12}
    device = Device("local", "here", 2**34, 1e10, rates, "measured", "test")
    monkeypatch.setattr(tiering_module, "measure", lambda: device)
    model = load_spec("smollm2")
    layout = KVLayout.of(model, "bf16", dtype=dtype)
    below = tiers_below(Tiering(2**30, 1e7), model, layout)
    # A block of 16 tokens, 368,640 bytes, takes 0.04 s over such a link.
    assert below.pays(0, 100, (1,)) is pays


def conversations() -> Trace:
    """Turns that begin with what came before, as hash ids say, among prompts of their own."""
    turns = []
    for talk in range(4):
        named = tuple(talk * 10 + part for part in range(4))
        turns += [TraceRequest(0.0, 8 * n + 3, 5, named[:n], hash_block=8) for n in (1, 2, 4)]
        turns.append(TraceRequest(0.0, 9, 12))
        turns.append(TraceRequest(0.0, 14, 3, prefix_id="system", prefix_tokens=10))
    return Trace("talks", tuple(turns))


def test_replay_and_engine_agree_with_prefixes_and_tiers(tiny_directory, tmp_path):
    loaded = load_model(tiny_directory("llama-gqa"))
    config = EngineConfig(
        kv_memory=14 * BLOCK_BYTES,
        block_size=4,
        max_length=48,
        token_budget=16,
        max_running=6,
        watermark=0.0,
        prefix_cache=True,
        tiering=tiers(host=5, files=30),
        load_rule=always,
        tier_directory=tmp_path,
        checked=True,
    )
    scenario = scenario_for(config, loaded.spec, conversations(), as_backlog=True)
    modelled, real = [], []
    device = Device("d", "A device", 2**30, 1e9, {"float32": 1e9}, "datasheet", "")
    links = [tier.link for tier in scenario.tiers]
    executor = ModelledExecutor(Roofline(loaded.spec, scenario.layout, device, "float32"), links)
    predicted = scenario.drive(executor, on_plan=lambda plan: modelled.append(plan.encode()))
    run = run_trace(
        loaded,
        scenario,
        config,
        on_plan=lambda plan: real.append(plan.encode()),
    )
    assert modelled == real
    assert b'"loads"' in b"".join(real)
    assert b'"moves"' in b"".join(real)
    assert predicted.reused_tokens == run.result.reused_tokens > 0


def test_prompts_of_a_trace_begin_alike_where_it_says_so():
    prompts = Prompts(3, 1000)
    of = [prompts.of(request) for request in conversations().requests]
    assert [len(ids) for ids in of] == [r.prompt_tokens for r in conversations().requests]
    first, second, third, alone, system = of[:5]
    assert first[:8] == second[:8] == third[:8]
    assert second[8:16] == third[8:16]
    assert first[8:] != second[8:11]
    assert system[:10] == of[9][:10]
    assert system[10:] != of[9][10:]
    assert alone[:8] != first[:8]


@st.composite
def schedules(draw):
    """What is submitted, advanced and cancelled, in which order, in how small a pool."""
    families = [ids(40, seed) for seed in range(2)]
    actions = []
    for number in range(draw(st.integers(2, 7))):
        shared = draw(st.integers(0, 24))
        prompt = draw(st.sampled_from(families))[:shared] + ids(
            draw(st.integers(1, 12)), 100 + number
        )
        actions.append(("submit", prompt, draw(st.integers(1, 12))))
        actions += [("step",)] * draw(st.integers(0, 4))
        if draw(st.booleans()) and draw(st.booleans()):
            actions.append(("cancel", draw(st.integers(0, number))))
    tiering = draw(
        st.sampled_from([Tiering(), tiers(host=7), tiers(host=4, files=9), tiers(files=9)])
    )
    return actions, draw(st.integers(13, 40)), draw(st.sampled_from([3, 16, 64])), tiering


@settings(max_examples=40)
@given(schedules())
def test_any_schedule_gives_the_answers_of_one_at_a_time(tiny_answers, schedule):
    actions, blocks, budget, tiering = schedule
    engine, alone = tiny_answers(blocks, budget, tiering)
    numbers, cancelled, done = [], set(), {}
    wanted = {}
    for action in actions:
        if action[0] == "submit":
            number = engine.submit(action[1], action[2], TO_THE_END)
            numbers.append(number)
            wanted[number] = (action[1], action[2])
        elif action[0] == "cancel":
            engine.cancel(numbers[action[1]])
            cancelled.add(numbers[action[1]])
        done.update((c.request, c) for c in engine.step().completions)
    while engine.has_work:
        done.update((c.request, c) for c in engine.step().completions)
    assert set(done) | cancelled == set(wanted)
    for number, completion in done.items():
        prompt, new = wanted[number]
        assert list(completion.token_ids) == alone(prompt, new)
    assert engine.scheduler.memory.free_blocks == blocks


@pytest.fixture(scope="module")
def tiny_answers(tiny_directory, tmp_path_factory):
    """Engines on one loaded model, and what it answers to a prompt alone."""
    loaded = load_model(tiny_directory("llama-gqa"))
    directory = tmp_path_factory.mktemp("tiers")
    known: dict[tuple[int, ...], list[int]] = {}
    plain = Engine(loaded, EngineConfig(64 * BLOCK_BYTES, block_size=4))

    def alone(prompt: list[int], new: int) -> list[int]:
        key = tuple(prompt)
        if len(known.get(key, ())) < new:
            known[key] = list(plain.generate([prompt], new, TO_THE_END)[0].token_ids)
        return known[key][:new]

    def build(blocks: int, budget: int, tiering: Tiering):
        config = EngineConfig(
            blocks * BLOCK_BYTES,
            block_size=4,
            token_budget=budget,
            watermark=0.0,
            prefix_cache=True,
            tiering=tiering,
            tier_directory=directory,
            load_rule=always,
            checked=True,
        )
        return Engine(loaded, config), alone

    return build


def test_the_command_shares_and_stores_for_real(tiny_directory, tmp_path, capsys):
    """Three of four prompts begin with 32 tokens that an earlier one has computed."""
    lines = [
        f'{{"timestamp": {i}, "input_length": 40, "output_length": 2, "hash_ids": [1]}}'
        for i in range(4)
    ]
    trace = tmp_path / "four.jsonl"
    trace.write_text("\n".join(lines))
    options = "--kv-memory 64KiB --prefix-cache --host-memory 32KiB --nvme-memory 32KiB"
    places = ["--tier-directory", str(tmp_path), "--block-size", "8", "--max-running", "1"]
    command = ["run", str(tiny_directory("llama-gqa")), "--trace", str(trace), "--json"]
    app([*command, *options.split(), *places], standalone_mode=False)
    result = json.loads(capsys.readouterr().out)
    assert result["finished"] == 4
    assert result["reused_tokens"] == 3 * 32
    assert [tier["name"] for tier in result["scenario"]["tiers"]] == ["host", "nvme"]
