"""Scrapes of /metrics: names of each engine, old and new; totals that grow; texts that are none."""

from __future__ import annotations

import io
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.doctor import examine
from kvhouse.doctor.metrics.read import Collected
from kvhouse.doctor.metrics.scrape import MOST_SAMPLES, is_scrape, scrapes
from kvhouse.doctor.texts import texts_of
from kvhouse.errors import KvhouseError

#: docs.sglang.io/references/production_metrics.html, shortened.
SGLANG = """\
# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 8.128902e+06
sglang:generation_tokens_total{model_name="meta-llama/Llama-3.1-8B-Instruct"} 7.557572e+06
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
sglang:cache_hit_rate{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.007507552643049313
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
"""
#: ikawrakow/ik_llama.cpp, pull request 695, and ggml-org/llama.cpp before 2025-05.
LLAMA = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 6886
llamacpp:prompt_seconds_total 2903.63
llamacpp:tokens_predicted_total 3469
llamacpp:kv_cache_usage_ratio 0.25
llamacpp:kv_cache_tokens 1024
llamacpp:requests_processing 1
llamacpp:requests_deferred 3
"""
TGI = """\
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 4
# TYPE tgi_queue_size gauge
tgi_queue_size 2
tgi_batch_current_max_tokens 16384
tgi_request_input_length_sum 50000
tgi_request_input_length_count 100
tgi_request_generated_tokens_sum 10000
tgi_request_generated_tokens_count 100
tgi_request_success{endpoint="generate"} 100
"""
#: The V0 engine, whose names kaito's docs/inference/Monitoring.md has of vLLM 0.6.3.
VLLM_V0 = """\
vllm:num_requests_running{model_name="m"} 4.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.25
vllm:num_preemptions_total{model_name="m"} 7.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="7000",num_cpu_blocks="2048"} 1.0
"""
#: kvhouse's own server: of 1,000 bytes 300 are cached or free.
KVHOUSE = """\
# TYPE kvhouse_requests_running gauge
kvhouse_requests_running 3.0
kvhouse_requests_waiting 1.0
kvhouse_kv_bytes{class="used"} 500.0
kvhouse_kv_bytes{class="reserved"} 150.0
kvhouse_kv_bytes{class="internal"} 50.0
kvhouse_kv_bytes{class="cached"} 100.0
kvhouse_kv_bytes{class="free"} 200.0
kvhouse_preemptions_total 2.0
kvhouse_requests_total{outcome="finished"} 40.0
kvhouse_requests_total{outcome="refused"} 9.0
"""


@pytest.mark.parametrize(
    ("text", "engine", "series"),
    [
        (KVHOUSE, "kvhouse", {"running": 3, "waiting": 1, "usage_share": pytest.approx(0.7)}),
        (SGLANG, "sglang", {"running": 162, "waiting": 2826, "usage_share": 0.28}),
        (LLAMA, "llama.cpp", {"running": 1, "waiting": 3, "usage_share": 0.25}),
        (TGI, "tgi", {"running": 4, "waiting": 2, "batch_tokens": 16384}),
        (VLLM_V0, "vllm-v0", {"running": 4, "waiting": 1, "usage_share": 0.5, "hit_pct": 25}),
    ],
    ids=["kvhouse", "sglang", "llama.cpp", "tgi", "vllm-v0"],
)
def test_each_engine_s_names_are_known(text, engine, series, examined) -> None:
    report = examined(text)
    assert report.log.source == "metrics"
    assert report.log.engine == engine
    assert {name: report.log.facts.series[name].last for name in series} == series


def test_of_kvhouse_s_requests_those_that_finished_count(examined) -> None:
    assert examined(KVHOUSE).log.facts.count("finished_total") == 40


def test_the_configuration_is_in_the_labels(examined) -> None:
    facts = examined(VLLM_V0).log.facts
    assert (facts.count("block_size"), facts.count("gpu_blocks")) == (16, 7000)
    assert facts.word("model") == "m"


def test_engines_of_one_server_add_up_and_the_fullest_counts(examined) -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{n}"}} {n + 1}\n'
        f'vllm:kv_cache_usage_perc{{engine="{n}"}} 0.{n + 1}\n'
        for n in range(3)
    )
    series = examined(text).log.facts.series
    assert series["running"].last == 6
    assert series["usage_share"].last == 0.3


def test_ranks_that_say_the_same_count_once(examined) -> None:
    text = "".join(f'sglang:num_running_reqs{{tp_rank="{n}"}} 5\n' for n in range(4))
    assert examined(text).log.facts.series["running"].last == 5


def test_ray_s_names_are_the_same(examined) -> None:
    report = examined('ray_vllm_num_requests_running{WorkerId="1"} 3\n')
    assert report.log.engine == "vllm"
    assert report.log.facts.series["running"].last == 3


def total(preempted: float, queried: float, hit: float) -> str:
    return (
        'vllm:num_requests_running{engine="0"} 8\n'
        f'vllm:num_preemptions_total{{engine="0"}} {preempted}\n'
        f'vllm:prefix_cache_queries_total{{engine="0"}} {queried}\n'
        f'vllm:prefix_cache_hits_total{{engine="0"}} {hit}\n'
    )


def test_of_several_scrapes_what_grew_counts(examined) -> None:
    facts = examined(total(100, 1000, 900) + total(103, 3000, 1100)).log.facts
    assert facts.count("preempted_total") == 3
    assert facts.series["hit_pct"].last == 10  # 200 of 2,000
    assert facts.series["running"].count == 2


def test_a_total_that_fell_was_counted_from_0_again(examined) -> None:
    report = examined(total(100, 1000, 900) + total(2, 50, 10))
    assert report.log.runs == 2
    assert report.log.facts.count("preempted_total") == 2


def test_what_is_no_number_is_passed_over(examined) -> None:
    text = (
        SGLANG + 'sglang:num_running_reqs{a="b"} NaN\nsglang:token_usage{x=} 3\nsglang:token_usage'
    )
    assert examined(text).log.facts.series["running"].count == 1


def test_no_figure_is_said_to_be_so(examined) -> None:
    report = examined(
        "# HELP go_gc_duration_seconds x\n# TYPE go_gc_duration_seconds summary\ngo 1\n"
    )
    assert not report.found
    looked = {one["engine"]: one["needles"] for one in report.to_dict(texts_of("en"))["looked_for"]}
    assert "vllm:num_requests_running" in looked["vllm"]


def test_a_log_that_quotes_metrics_is_a_log() -> None:
    log = b"INFO 1 server started\n" * 5 + SGLANG.encode()[:80] + b"\n"
    assert not is_scrape(log)
    assert is_scrape(SGLANG.encode())
    assert is_scrape(b"\n\n" + TGI.encode())
    assert not is_scrape(b"")


def test_samples_are_bounded() -> None:
    lines = (f'vllm:num_requests_running{{engine="{n}"}} 1'.encode() for n in range(20_000))
    found = list(scrapes(lines))
    assert len(found) == 1
    assert found[0].count == MOST_SAMPLES


@given(
    st.lists(
        st.sampled_from([*SGLANG.encode().split(b"\n"), b"{", b"\xff", b"1 1 1"]) | st.binary()
    )
)
def test_no_text_crashes_it(lines: list[bytes]) -> None:
    content = b"# HELP a b\n# TYPE a b\n" * 40 + b"\n".join(lines)
    examine(io.BytesIO(content))


@given(st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=1, max_size=12))
def test_growth_is_the_sum_of_what_each_scrape_added(counts) -> None:
    """Written the other way round: add up increases, from 0 after a fall of any total."""
    collected = Collected()
    for numbers in counts:
        for scrape in scrapes(total(*numbers).encode().split(b"\n")):
            collected.take(scrape)
    expected = [0, 0, 0]
    for before, after in pairwise(counts):
        fell = any(b > a for b, a in zip(before, after, strict=True))
        expected = [
            have + (a if fell else a - b)
            for have, b, a in zip(expected, before, after, strict=True)
        ]
    if len(counts) > 1:
        names = ("preempted_total", "queried_total", "hit_total")
        assert [collected.grown[name] for name in names] == expected


def test_without_its_library_metrics_are_refused_in_a_line(examined, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    with pytest.raises(KvhouseError, match=r"pip install 'kvhouse\[server\]'"):
        examined(TGI)
