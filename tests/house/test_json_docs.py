"""docs/json.md describes every key that ``--json`` gives, in both languages, and no other."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvhouse import devices, spec
from kvhouse.bench.load import Sent
from kvhouse.bench.records import LoadRecord
from kvhouse.bench.results import LoadResult, summarise
from kvhouse.bench.row_result import Rate, RowResult, StepBytes, StepTimes
from kvhouse.calibration.fit import Residuals
from kvhouse.calibration.profile import Profile
from kvhouse.calibration.recorded import Record
from kvhouse.calibration.verify import Exactness, StepErrors, Verification
from kvhouse.cli.answering import Usage
from kvhouse.cli.demo import listed as demos
from kvhouse.cli.running import answers_to_dict
from kvhouse.costs import StepRates
from kvhouse.demo.cache import CacheOutcome, CacheSetting
from kvhouse.demo.chatbot import ChatbotOutcome, ChatbotSetting
from kvhouse.demo.paging import POLICIES, Outcome, Setting
from kvhouse.doctor import examine
from kvhouse.doctor.metrics.watch import Poll
from kvhouse.doctor.texts import texts_of
from kvhouse.engine import Engine, EngineConfig
from kvhouse.engine.fast.paths import Paths
from kvhouse.engine.load import LoadedModel
from kvhouse.engine.outputs import Completion, FinishReason, TokenLogprobs
from kvhouse.engine.quality import Quality, QualityReport, Variant
from kvhouse.engine.support import Capability, require_support
from kvhouse.engine.traced import TracedRun
from kvhouse.layout import KVLayout
from kvhouse.planner import plan
from kvhouse.planner.cases import case_for
from kvhouse.planner.catalogue import listed
from kvhouse.planner.compare import compare
from kvhouse.planner.engines.registry import ENGINES
from kvhouse.planner.growth import growth
from kvhouse.planner.report import Questions, report
from kvhouse.planner.traffic import Traffic
from kvhouse.replayer import SLO, Setup, Tiering, Trace, read_trace
from kvhouse.replayer.describe import describe
from kvhouse.replayer.events import Event
from kvhouse.replayer.find import Goal, find_min_memory
from kvhouse.replayer.logged import LoggedDrive
from kvhouse.replayer.moments.oom import out_of_memory
from kvhouse.replayer.moments.oom_outcome import OomSetting
from kvhouse.replayer.moments.warehouse import Warehouse, warehouse
from kvhouse.replayer.remedies import Fitting, Tries, fitting, remedies, unfit
from kvhouse.replayer.results import Distribution, ReplayResult
from kvhouse.replayer.sweep import Grid, SweepResult, sweep_of
from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.traces import TraceStream
from kvhouse.server.sight import describe as describe_pool
from kvhouse.server.sight import state
from kvhouse.server.totals import StepTotals
from kvhouse.spec.hf_config import read_config
from kvhouse.views.cache import Point
from kvhouse.views.chatbot import Watched

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENTS = ("json.md", "json.zh-CN.md")
#: Level, title and body of a section.
SECTION = re.compile(r"^#{2,3} (.+)\n((?:(?!#).*\n)*)", re.MULTILINE)
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]*) \| ([^|]*) \| ([^|]+) \|$", re.MULTILINE)
LINK = re.compile(r"\]\(#([\w-]+)\)")
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": (list, tuple),
    "object": dict,
    "null": type(None),
}
KINDS = {"", "exact", "measured", "modelled", "estimated", "timing", "device", "assumed", "input"}

Row = tuple[str, str, str, str, str]


def sections(document: str) -> dict[str, list[Row]]:
    """By anchor, each section's rows: key, type, unit, kind, meaning."""
    text = (DOCS / document).read_text()
    found = {
        title.lower().replace(" ", "-"): ROW.findall(body) for title, body in SECTION.findall(text)
    }
    return {anchor: rows for anchor, rows in found.items() if rows}


def documented(document: str, anchor: str) -> dict[str, str]:
    """Paths and types of a section's keys, those of the sections that its types name included."""
    parts = sections(document)

    def walk(anchor: str, prefix: str) -> Iterator[tuple[str, str]]:
        for key, kind, *_ in parts[anchor]:
            inner = LINK.search(kind)
            path = prefix + key
            if key != "*" and not key.endswith("[]"):
                yield path, "object" + _or_null(kind) if inner else kind
            if inner:
                yield from walk(inner[1], prefix if key == "*" else path + ".")

    pairs = list(walk(anchor, ""))
    assert len(pairs) == len(dict(pairs)), "a key is described twice"
    return dict(pairs)


def _or_null(kind: str) -> str:
    return " or null" if kind.endswith(" or null") else ""


def given(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key in a command's output with a value; ``[]`` stands for any place in an array."""
    if isinstance(value, dict):
        for key, inner in value.items():
            below = f"{path}.{key}" if path else key
            yield below, inner
            yield from given(inner, below)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from given(inner, path + "[]")


def plans() -> list[dict[str, Any]]:
    """Plans with every question asked, with none, and with answers that have few figures."""
    full = case_for("llama-2-7b", "a10-24g", context=500)
    steady, crowd = Traffic.given(0.05, 300, 200), Traffic.given(1000, 300, 200)
    questions = Questions(shared_tokens=100, grid=True, traffic=steady, engine="vllm")
    windows = case_for("gemma-3-27b", "h100-80g", context=9000, tp=2, policy="contiguous-max")
    # Its FLOP/s are not known, and the model has states.
    states = case_for("qwen3-next-80b-a3b", "epyc-9654", kv_memory=2**34)
    return [
        report(full, questions).to_dict(),
        report(windows, Questions(grid=True, traffic=crowd)).to_dict(),
        report(states, Questions(shared_tokens=100)).to_dict(),
        *(report(full, Questions(remedies=False, engine=name)).to_dict() for name in ENGINES),
    ]


def outputs() -> dict[str, list[dict[str, Any]]]:
    """Outputs of each command, by the section that describes them."""
    sized = plan("llama-2-7b", "a10-24g", context=500)
    trace = read_trace("azure-conv-2023", limit=32)
    sharing = Setup(
        trace,
        spec.load("llama-2-7b"),
        devices.get("a100-80g"),
        2**33,
        prefix_cache=True,
        tiering=Tiering(2**33),
    )
    figures = sharing.drive(slo=SLO(latency=60.0), timeline=2)
    assert figures.rejections
    found = find_min_memory(
        Setup(trace, sharing.model, sharing.device), Goal(SLO(latency=60.0), 0.5)
    )
    # A search is not asked for a timeline, nor about prefixes and tiers.
    found = replace(found, result=figures)
    advice = remedies(
        Setup(trace, sharing.model, sharing.device), slo=SLO(60.0), tries=Tries(pairs=0)
    )
    assert advice.excluded
    # Nor is a ranking.
    rows = tuple(replace(row, results=(figures,)) for row in advice.rows)
    advice = replace(advice, base_result=figures, rows=rows)
    drives = {policy: LoggedDrive(figures, "", 0) for policy in POLICIES}
    named = {"model": "", "device": ""}  # which the commands put in front
    profile = _profile()
    used = profile.about_dict()
    too_long = compare(["llama-2-7b"], ["a10-24g", "a100-80g"], context=5000)
    return {
        "kvhouse-plan": plans(),
        "kvhouse-plan-with---compare": [
            compare(["llama-2-7b", "gemma-3-27b"], ["a10-24g", "a100-80g"]).to_dict(),
            too_long.to_dict(),
        ],
        "kvhouse-replay": [
            {**named, "profile": by, "partial": figures.partial, **figures.to_dict()}
            for by in (None, used)
        ],
        "kvhouse-replay-with-several-policies": [
            {**named, "profile": used, "partial": False, "results": [figures.to_dict()]}
        ],
        "kvhouse-replay-with-a-search": [{**named, "profile": used, **found.to_dict()}],
        "kvhouse-remedies": [{**named, "command": "", **advice.to_dict()}],
        "kvhouse-remedies-where-the-weights-do-not-fit": [
            {**named, "command": "", **_fitting(trace).to_dict()}
        ],
        "kvhouse-sweep": [_sweep(sharing)],
        "events": [_events(sharing)],
        "kvhouse-trace": [describe(TraceStream("mooncake-conv")).to_dict()],
        "kvhouse-run-with-a-prompt": _answers(),
        "kvhouse-serve": [_serving()],
        "kvhouse-top": [_pool_state()],
        "kvhouse-models": [{"models": [model.to_dict() for model in listed()]}],
        "kvhouse-models-with---check": [
            {"model": "m", **found.to_dict()}
            for found in (Capability("packed"), Capability("packed", "why", 2048))
        ],
        "kvhouse-run-with-a-trace": [{**named, **TracedRun(figures, 0, Paths()).to_dict()}],
        "kvhouse-calibrate": [profile.model_dump()],
        "kvhouse-verify": [
            {"model": "", "profile": used, **_verification(figures, preempted).to_dict()}
            for preempted in (0, 1)
        ],
        "kvhouse-devices-name": [devices.get("l4").to_dict()],
        "kvhouse-devices": [{"devices": [device.to_dict() for device in devices.listed()]}],
        "kvhouse-quality": [_quality().to_dict()],
        "kvhouse-bench": _batches(),
        "kvhouse-bench-with-a-load": [_load().to_dict(), _load(paths=Paths().to_dict()).to_dict()],
        "kvhouse-doctor": _doctor(),
        "kvhouse-doctor-with---watch": _polls(),
        "kvhouse-demo": [{"demos": demos()}],
        "kvhouse-demo-growth": [
            growth(spec.load("llama-2-7b")).to_dict(),
            growth(spec.load("smollm2"), "bf16", 9).to_dict(),
            growth(spec.load("llama-4-scout"), "fp8").to_dict(),
        ],
        "kvhouse-demo-warehouse": [warehouse(Warehouse()).to_dict()],
        "kvhouse-demo-oom": [out_of_memory(OomSetting()).to_dict()],
        "kvhouse-demo-cache": [CacheOutcome(CacheSetting(), "", (Point(1, *[0.0] * 5),)).to_dict()],
        "kvhouse-demo-chatbot": [_chatbot(figures)],
        "kvhouse-demo-paging": [Outcome(Setting(), sized, drives, drives).to_dict()],
    }


def _profile() -> Profile:
    made = spec.load("smollm2")
    return Profile.of(
        made,
        KVLayout.of(made, "fp32"),
        "float32",
        devices.get("l4"),
        2,
        StepRates((1, 2), (0.5, 0.5), *[0.5] * 6),
        Residuals(9, *[0.5] * 4),
        disturbance=0.5,
        partial=False,
        kv_rotation=False,
        fast_path=True,
        paths=Paths(),
    )


def _verification(figures: ReplayResult, preemptions: int) -> Verification:
    """One that finds a difference; an error of what was measured as nothing is null."""
    measured = replace(figures, preemptions=preemptions)
    exactness = Exactness("", "", ("preemptions",))
    errors = StepErrors(1, 0.5, 0.5, 0.5)
    return Verification(figures, measured, exactness, errors, Record(), Paths())


def _chatbot(figures: ReplayResult) -> dict[str, Any]:
    watched = dict.fromkeys(POLICIES, Watched(figures, 1, *[0.5] * 4))
    return ChatbotOutcome(ChatbotSetting(), 1500, watched).to_dict()


def _fitting(trace: Trace) -> Fitting:
    """A model that fits a device with one change and not with another."""
    base = Setup(trace, spec.load("llama-2-70b"), devices.get("rtx-3090"))
    budget = unfit(base)
    assert budget
    found = fitting(base, budget, slo=SLO(60.0))
    assert found.rows
    assert found.excluded
    return found


def _sweep(setup: Setup) -> dict[str, Any]:
    """One cell that fits and one that cannot."""
    grid = Grid(("llama-2-7b",), ("a100-80g", "a10-24g"))
    base = replace(setup, kv_memory=None, tiering=Tiering())
    figures = {name: devices.get(name) for name in grid.devices}
    figures["a10-24g"] = replace(figures["a10-24g"], memory_bytes=2**33, driver_bytes=None)
    sweep = sweep_of(grid, base, {"llama-2-7b": setup.model}, figures, SLO(latency=60.0))
    rows = tuple(map(sweep.row, grid.cells()))
    assert [row.status for row in rows] == ["done", "impossible"]
    return SweepResult("azure-conv-2023", 32, rows, 2, 0).to_dict("goodput")


def _answers() -> list[dict[str, Any]]:
    """One that says all that can be said of an answer, and one that says little."""
    likely = TokenLogprobs(-0.5, ((2, -0.5),))
    full = Completion(0, 1, (2,), "", FinishReason.STOP, "", 0, "stop", (likely,))
    bare = Completion(0, 1, (2,), "", FinishReason.LENGTH)
    return [
        answers_to_dict("", [full], Usage(1, 2, 3, 4.0, 5.0), Paths(30, compiled=True)),
        answers_to_dict("", [bare], Usage(1), Paths(reason="another")),
    ]


def served() -> Engine:
    """A tiny engine in whose pool one request runs and another one waits."""
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    kind = require_support(config).way
    described = read_config(config.to_dict(), "tiny", "its config")
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    loaded = LoadedModel(described, model, kind, None)
    engine = Engine(loaded, EngineConfig(kv_memory=2**13, max_running=1, prefix_cache=True))
    for _ in range(2):
        engine.submit([1, 2, 3], 5)
    return engine


def _serving() -> dict[str, Any]:
    engine = served()
    paths = engine.paths.to_dict()
    return {
        "url": "",
        "model": "",
        "process": 1,
        "max_model_len": 1,
        "pool": describe_pool(engine),
        "paths": paths,
    }


def _pool_state() -> dict[str, Any]:
    """What ``/kv`` gives while one request runs."""
    engine = served()
    engine.observer = totals = StepTotals(engine)
    engine.step()
    return state(engine, "", 1.0, totals, 100)


def _doctor() -> list[dict[str, Any]]:
    """A log with an error, one without a word that is known, and one that only fails."""
    texts = texts_of("en")
    start = (
        "Initializing a V1 LLM engine (v0.11.0) with config: model='Qwen/Qwen3-14B', "
        "dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1\n"
        "INFO Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 13.9%\n"
        "Free memory on device (79.0/79.2 GiB) on startup. Desired GPU memory utilization is "
        "(0.5, 39.6 GiB).\n"
        "ValueError: To serve at least one request with the models's max seq len (32768), "
        "(5.00 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(2.00 GiB). Try increasing\n"
    )
    logs = (start, "hello\n", "GPU KV cache size: 16 tokens\n")
    return [examine(io.BytesIO(log.encode())).to_dict(texts) for log in logs]


def _batches() -> list[dict[str, Any]]:
    """One that was measured, and one of which nothing but its size is known."""
    rate, spread = Rate(1.0, 1.0, 1.0), Distribution(*[1.0] * 5)
    times = StepTimes(1, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0)
    moved = StepBytes(1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, "bandwidth", 1.0)
    full = RowResult(
        1,
        1,
        1,
        "",
        "",
        "",
        1,
        False,
        rate,
        rate,
        spread,
        times,
        moved,
        bandwidth=1.0,
        bandwidth_source="",
        kv_bytes=1,
        paths=Paths(),
    )
    nothing = dict.fromkeys(
        ("prefill_tokens_per_second", "decode_tokens_per_second", "first_token_seconds")
    )
    bare = replace(full, **nothing, decode_step=None, decode_bytes=None)
    return [{"model": "", **one.to_dict()} for one in (full, bare)]


def _load(**of_an_engine: Any) -> LoadResult:
    """One of two requests: one is answered, one fails."""
    done, failed = (LoadRecord(n, TraceRequest(0.0, 1, 3), 0.0) for n in range(2))
    for second in range(3):
        done.take(1, second + 1.0)
    done.finish()
    failed.fail("cut", "", 1.0)
    named = dict.fromkeys(("target", "model", "prompts", "end_of_sequence", "made"), "")
    sent = Sent([done, failed], 3.0)
    return summarise(sent, named | of_an_engine, trace="", requests=2, slo=SLO(latency=60.0))


def _polls() -> list[dict[str, Any]]:
    """The first, which knows no rates, and one that knows them all."""
    names = ("preempted_total", "queried_total", "hit_total", "prompt_total", "generated_total")
    grown = dict.fromkeys((*names, "finished_total"), 1.0)
    gauges = {"running": 1.0, "waiting": 0.0, "usage_share": 0.5}
    return [Poll(1).to_dict(), Poll(2, 1.0, gauges, grown, fits=1.5).to_dict()]


def _quality() -> QualityReport:
    return QualityReport("", "", 1, 2, (Quality(Variant("int8"), "", 1, *[0.5] * 5),))


def _events(setup: Setup) -> dict[str, Any]:
    """One line with the keys of all."""
    events: list[Event] = []
    small = replace(setup, kv_blocks=256, watermark=0.0, as_backlog=True)
    assert small.drive(on_event=events.append).preemptions
    lines = [json.loads(event.encode()) for event in events]
    assert all(list(line)[:4] == ["event", "step", "time", "request"] for line in lines)
    return {key: value for line in lines for key, value in line.items()}


OUTPUTS = outputs()


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("anchor", OUTPUTS)
def test_every_key_is_described_and_no_other(document: str, anchor: str) -> None:
    found = {path for one in OUTPUTS[anchor] for path, _ in given(one)}
    assert set(documented(document, anchor)) == found


@pytest.mark.parametrize("anchor", OUTPUTS)
def test_the_types_are_those_of_the_values(anchor: str) -> None:
    types = documented("json.md", anchor)
    for path, value in (pair for one in OUTPUTS[anchor] for pair in given(one)):
        kinds = [kind.partition(" of ") for kind in types[path].split(" or ")]
        assert any(isinstance(value, JSON_TYPES[name]) for name, _, _ in kinds), path
        if value is not None:
            assert isinstance(value, bool) == types[path].startswith("boolean"), path
        for _, of, entries in kinds:
            if of and isinstance(value, list | tuple):
                entry = JSON_TYPES[entries.removesuffix("s")]
                assert all(isinstance(inner, entry) for inner in value), path


#: Answers to questions that need not be asked.
ANSWERS = ("remedies", "grid", "traffic", "engine")


def test_what_is_not_asked_is_null_and_said_to_be_so() -> None:
    plain = report(case_for("llama-2-7b", "a10-24g"), Questions(remedies=False)).to_dict()
    assert tuple(key for key, value in plain.items() if key in ANSWERS and value is None) == ANSWERS
    types = documented("json.md", "kvhouse-plan")
    assert all(types[key] == "object or null" for key in ANSWERS)


def test_every_null_of_a_plan_and_a_comparison_occurs() -> None:
    """But for one that only a model which reads nothing of a request would show."""
    for anchor in ("kvhouse-plan", "kvhouse-plan-with---compare"):
        types = documented("json.md", anchor)
        nulls = {path for one in OUTPUTS[anchor] for path, value in given(one) if value is None}
        said = {path for path, kind in types.items() if kind.endswith(" or null")}
        assert said - nulls <= {"speeds[].kv_tokens_per_second"}


def test_both_languages_say_the_same_types_and_kinds() -> None:
    original, translated = (sections(document) for document in DOCUMENTS)
    assert list(original) == list(translated)
    for anchor, rows in original.items():
        pairs = zip(rows, translated[anchor], strict=True)
        assert all((a[:2], a[3], bool(a[2])) == (b[:2], b[3], bool(b[2])) for a, b in pairs), anchor
        assert {kind for row in rows for kind in row[3].split(" or ")} <= KINDS
