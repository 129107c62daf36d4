"""Each cause from lines that engines print when it strikes; the numbers are those of the lines."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from kvhouse.doctor import Report
from kvhouse.doctor.diagnoses.base import Diagnosis
from kvhouse.doctor.texts import texts_of
from kvhouse.views.doctor import show_report

NEED = (
    "ValueError: To serve at least one request with the models's max seq len (40960), (10.00 GiB "
    "KV cache is needed, which is larger than the available KV cache memory (1.25 GiB). "
)
QWEN3_32B = (
    "Initializing a V1 LLM engine (v0.9.0) with config: model='Qwen/Qwen3-32B', "
    "dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=1, kv_cache_dtype=auto\n"
)
MEMORY = (
    "Free memory on device (78.9/79.2 GiB) on startup. Desired GPU memory utilization is "
    "({share}, {budget} GiB).\n"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 0 has a total "
    "capacity of 23.68 GiB of which {free} GiB is free. Including non-PyTorch memory, this process "
    "has 20.00 GiB memory in use. Of the allocated memory {held} GiB is allocated by PyTorch, and "
    "{idle} GiB is reserved by PyTorch but unallocated.\n"
)


def statistics(running: int, waiting: int, usage: float, hits: float = 50.0) -> str:
    return (
        "INFO Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 "
        f"tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: "
        f"{usage}%, Prefix cache hit rate: {hits}%\n"
    )


def arguments(**given: object) -> str:
    return f"non-default args: {given}\n"


TEXTS = {
    "cannot_hold_one_unsized": NEED,
    "cannot_hold_one": NEED
    + "Based on the available memory, the estimated maximum model length is 5120. Try\n",
    "no_blocks": "ValueError: No available memory for the cache blocks. Try increasing\n",
    "no_blocks_missing": "Available KV cache memory: -0.19 GiB\n"
    "ValueError: No available memory for the cache blocks.\n",
    "other_processes": "ValueError: Free memory on device cuda:0 (2.6/121.63 GiB) on startup is "
    "less than desired GPU memory utilization (0.08, 9.73 GiB). Decrease\n",
    "too_few_states": "max_num_seqs (1024) exceeds available Mamba cache blocks (512). Each\n",
    "weights": "Model loading took 76.0 GiB memory and 3 seconds\n"
    + MEMORY.format(share=0.9, budget=71.28),
    "weights_unloaded": "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n",
    "activations": "the current vLLM instance can use total_gpu_memory (44.39GiB) x "
    "gpu_memory_utilization (0.92) = 40.84GiB\nmodel weights take 21.67GiB; non_torch_memory takes "
    "0.36GiB; PyTorch activation peak memory takes 15.73GiB; the rest of the memory reserved for "
    "KV Cache is 3.09GiB.\n",
    "warm_up": "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
    "requests. Please try lowering\n",
    "graphs": "Estimated CUDA graph memory: 1.62 GiB total\nAvailable KV cache memory: 6.9 GiB\n",
    "fragmentation": OOM.format(tried="1.00", free="0.80", held="17.00", idle="3.00"),
    "oom": OOM.format(tried="1.00", free="0.20", held="19.70", idle="0.10"),
    "oom_huge": OOM.format(tried="19.68", free="11.88", held="11.44", idle="0.04"),
    "kv_buffer": "llama_context: n_ctx         = 65536\nllama_init_from_model: failed to "
    "initialize the context: failed to allocate buffer for kv cache\n",
    "projected": "llama_params_fit_impl: projected to use 11138 MiB of device memory vs. 10372 "
    "MiB of free device memory\n",
    "preemption_storm": "Sequence group 9 is preempted by PreemptionMode.RECOMPUTE mode because "
    "there is not enough KV cache space. This can affect the end-to-end performance. Increase "
    "gpu_memory_utilization. total_num_cumulative_preemption=151\n",
    "preemptions": "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: "
    "0.0980 -> 0.3487\n",
    "many_requests": arguments(max_num_seqs=256)
    + "Maximum concurrency for 32,768 tokens per request: 1.30x\n"
    + statistics(9, 4, 99.5),
    "few_requests": arguments(max_num_seqs=8)
    + "Maximum concurrency for 4,096 tokens per request: 80.00x\n"
    + statistics(8, 30, 20.0),
    "capped": statistics(8, 30, 20.0) * 20,
    "pool_full": statistics(12, 34, 98.5) * 20,
    "scales_of_one": "Using KV cache scaling factor 1.0 for fp8_e4m3. If this is unintended\n",
    "cells_short": "srv update_slots: failed to find free space in the KV cache, retrying with "
    "smaller batch size, i = 0, n_batch = 1024, ret = 1\n",
    "reserved_ahead": "llama_context: n_seq_max     = 4\nllama_context: n_ctx         = 8192\n"
    "llama_kv_cache: size =  416.00 MiB (  8192 cells,  13 layers,  4/1 seqs)\n",
    "hybrid_tokens": "Setting attention block size to 1600 tokens to ensure that attention page "
    "size is >= mamba page size.\nGPU KV cache size: 260,006 tokens\n",
    "no_hits": statistics(8, 0, 80.0, hits=0.0) * 20,
    "arrivals": statistics(3, 0, 12.0) * 20,
    "pool_below_length": "[TensorRT-LLM][WARNING] Attention window size 131072 exceeds upper bound "
    "8224 for available blocks. Reducing to 8224.\n",
    "fine": "GPU KV cache size: 42,656 tokens\nMaximum concurrency for 4,096 tokens per request: "
    "10.41x\n",
}


def loads(tokens: int, cost_ms: float, times: int = 4) -> str:
    return (
        f"(EngineCore_DP0 pid=494270) [2025-09-30 01:12:36,502] LMCache INFO: Retrieved {tokens} "
        f"out of {tokens} required tokens (from {tokens} total tokens). size: 0.1 gb, cost "
        f"{cost_ms} ms, throughput: 0.2 GB/s;\n"
    ) * times


def throughput(prompts: float, hits: float, below: float, usage: float = 60.0) -> str:
    """A line of vllm/v1/metrics/loggers.py where a connector is configured."""
    return (
        f"INFO Engine 000: Avg prompt throughput: {prompts} tokens/s, Avg generation throughput: "
        f"75.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: {usage}%, Prefix "
        f"cache hit rate: {hits}%, External prefix cache hit rate: {below}%\n"
    )


def prefills(cached: int, new: int) -> str:
    return (
        f"[2025-09-03 18:33:18 TP0] Prefill batch. #new-seq: 1, #new-token: {new}, #cached-token: "
        f"{cached}, token usage: 0.10, #running-req: 1, #queue-req: 0,\n"
    )


def slot(context: int, prompt: int, kept: int, end: int) -> str:
    return (
        f"slot update_slots: id  0 | task 7 | new prompt, n_ctx_slot = {context}, n_keep = 0, "
        f"task.n_tokens = {prompt}\n"
        f"slot update_slots: id  0 | task 7 | n_tokens = {kept}, memory_seq_rm [{kept}, end)\n"
        f"slot update_slots: id  0 | task 7 | n_tokens = {kept + 2}, memory_seq_rm [2048, end)\n"
        f"slot      release: id  0 | task 7 | stop processing: n_tokens = {end}, truncated = 0\n"
    )


TEXTS |= {
    # LMCache/LMCache issues 81, 1061, 1109 and 2205: the first token comes later with it.
    "offload_slow": throughput(8000.0, 0.0, 0.0) + loads(8192, 4000.0),
    # LMCache/LMCache issues 1139, 1739, 2979; vllm-project/vllm issue 42625: hits are always 0.
    "other_keys": "LMCache WARNING: Using builtin hash without PYTHONHASHSEED set. For production\n"
    "LMCache INFO: Reqid: cmpl-1, Total tokens 5000, LMCache hit tokens: 0, need to load: 0\n",
    # vllm-project/vllm issues 40696, 51198 and 53749: blocks of 528 to 2,096 tokens.
    "no_hits_block": "Setting attention block size to 2096 tokens to ensure that attention page "
    "size is >= mamba page size.\n" + statistics(8, 0, 80.0, hits=0.0) * 20,
    # vllm-project/vllm issue 16016: prefixes are found again under the same salt only.
    "no_hits_salt": 'request body: {"cache_salt": "b64-of-a-tenant", "prompt": "x"}\n'
    + statistics(8, 0, 80.0, hits=0.0) * 20,
    # Mintplex-Labs/anything-llm issue 6398, goruck/home-generative-agent issue 617: a clock in the
    # first sentence; every prompt keeps what stands before it.
    "parts_early": prefills(cached=4, new=2504) * 12,
    # ggml-org/llama.cpp pull request 13194.
    "windows_lost": "slot update_slots: id  2 | task 319 | forcing full prompt re-processing due "
    "to lack of cache data (likely due to SWA or hybrid/recurrent memory\n",
    # vllm-project/vllm issue 42948: blocks are evicted under pressure from four prefills on.
    "evicted_early": statistics(2, 0, 40.0, hits=78.0) * 6 + statistics(9, 4, 99.0, hits=12.0) * 9,
    # MirkoCovizzi/ninfer-rtx5090-mobile issue 3: hits in the tier are what the pool has lost.
    "evicted_early_below": throughput(500.0, 5.0, 60.0) * 12,
    # vllm-project/vllm issue 34076: 16 and 32 GiB cards in one pipeline.
    "uneven_stages": "(Worker_PP0 pid=11) Available KV cache memory: 3.18 GiB\n"
    "(Worker_PP1 pid=12) Available KV cache memory: 11.90 GiB\n",
    # ggml-org/llama.cpp pull request 13194: slots of a context that requests fill by a fifth.
    "reservation_waste": "llama_context: n_seq_max     = 4\n"
    + slot(context=131072, prompt=9683, kept=4000, end=23083) * 3,
    # pytorch/pytorch issue 175431, lemonade-sdk/vllm-rocm issue 5.
    "oom_free": OOM.format(tried="0.50", free="18.55", held="2.00", idle="0.10"),
    # NVIDIA/TensorRT-LLM issue 5872.
    "no_room": "[TRT-LLM] [RANK 1] [E] Failed to initialize executor on rank 1: Executor creation "
    "failed due to insufficient GPU memory.\n\nThe following component could not be created: KV "
    "cache\n"
    "Free GPU memory before component creation attempt (GiB): 108.86\n",
    # vllm-project/vllm issue 18115: a storm, by V1's count since the line before.
    "recomputed_estimated": "GPU KV cache size: 42,656 tokens\n"
    + statistics(8, 0, 50.0).replace("reqs, GPU", "reqs, Preemptions: 30, GPU") * 2,
}


def told(report: Report, code: str) -> Diagnosis:
    found = {one.code: one for one in report.diagnoses}
    assert code in found, list(found)
    return found[code]


@pytest.mark.parametrize("code", TEXTS)
def test_a_cause_is_recognised(code: str, examined) -> None:
    diagnosis = told(examined(TEXTS[code]), code)
    assert diagnosis.evidence or code == "fine"


def test_a_server_without_a_cause_is_fine(examined) -> None:
    assert [one.code for one in examined(TEXTS["fine"]).diagnoses] == ["fine"]


def test_one_request_that_does_not_fit_is_helped_with_exact_flags(examined) -> None:
    """Qwen3-32B takes 262,144 B a token: 318 blocks of 16 in 1.245 GiB, printed as 1.25."""
    log = QWEN3_32B + MEMORY.format(share=0.9, budget=71.28) + NEED
    diagnosis = told(examined(log, "qwen3-32b"), "cannot_hold_one")
    assert dict(diagnosis.values) == {
        "asked": "40,960",
        "needed": "10.00 GiB",
        "available": "1.25 GiB",
        "largest": "5,088",
    }
    flags = {remedy.flag: remedy for remedy in diagnosis.remedies}
    assert flags["--max-model-len 5088"].gained == 1
    assert "--kv-cache-dtype fp8" in flags
    assert flags["--kv-cache-dtype fp8"].gained == 0  # half of ten is still more than there is
    assert "--tensor-parallel-size 2" in flags
    assert not any(flag.startswith("--gpu-memory") for flag in flags)  # 0.9 + 8.75 / 79.2 > 0.98


def test_the_share_that_would_do_is_exact(examined) -> None:
    """What is missing, 8.75 of 79.2 GiB, is 0.1105 of the device."""
    log = QWEN3_32B + MEMORY.format(share=0.5, budget=39.6) + NEED
    remedies = told(examined(log, "qwen3-32b"), "cannot_hold_one").remedies
    gained = {remedy.flag: remedy.gained for remedy in remedies}
    assert gained["--gpu-memory-utilization 0.611"] == 1


def test_remedies_are_ranked_by_requests_gained_per_risk(examined) -> None:
    log = QWEN3_32B + MEMORY.format(share=0.5, budget=39.6) + NEED
    ranks = [remedy.rank for remedy in told(examined(log, "qwen3-32b"), "cannot_hold_one").remedies]
    assert ranks == sorted(ranks)


def test_more_ranks_than_heads(examined) -> None:
    log = (
        "Initializing a V1 LLM engine (v0.11.0) with config: model='m', max_seq_len=4096, "
        "tensor_parallel_size=16\nAvailable KV cache memory: 6.51 GiB\n"
    )
    diagnosis = told(examined(log, "qwen3-32b"), "tp_over_heads")
    assert dict(diagnosis.values) == {"ranks": "16", "heads": "8", "copies": "2"}


def test_flags_are_those_of_the_engine(examined) -> None:
    sglang = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    flags = {remedy.flag for remedy in told(examined(sglang), "no_blocks").remedies}
    assert "--tp-size 2" in flags
    assert all(not flag.startswith("--gpu-memory") for flag in flags)


def test_the_memory_is_one_bar(examined) -> None:
    """Of 79.22 GiB, 0.9 may be used; the parts are those of vLLM's PR 10511."""
    log = (
        "the current vLLM instance can use total_gpu_memory (79.22GiB) x gpu_memory_utilization "
        "(0.90) = 71.29GiB\nmodel weights take 14.96GiB; non_torch_memory takes 1.79GiB; PyTorch "
        "activation peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is "
        "53.29GiB.\n"
    )
    bar = examined(log).bar
    assert bar is not None
    parts = dict(bar.parts)
    gib = 2**30
    assert parts["weights"] == int(14.96 * gib)
    assert parts["kv_reserved"] == int(53.29 * gib)
    assert parts["unused"] == int(79.22 * gib) - int(71.29 * gib)
    assert abs(sum(parts.values()) - int(79.22 * gib)) < 0.03 * gib


def test_nothing_known_is_said_to_be_so(examined) -> None:
    report = examined("hello\nworld\n")
    assert not report.found
    assert report.diagnoses == ()


def test_loads_are_compared_with_the_least_that_is_computed(examined) -> None:
    """8,192 tokens in 4 s are 2,048 a second; half of 8,000 was found, so 4,000 were computed."""
    log = throughput(8000.0, 50.0, 0.0) + loads(8192, 4000.0)
    values = dict(told(examined(log), "offload_slow").values)
    assert (values["loaded"], values["computed"], values["times"]) == ("2,048", "4,000", "2.0")
    fast = examined(throughput(8000.0, 50.0, 0.0) + loads(8192, 1000.0))
    assert "offload_slow" not in {one.code for one in fast.diagnoses}


def test_sglang_s_tier_by_its_totals(examined) -> None:
    """10,000 tokens in 20 s, beside prompts of which nothing says how fast they were computed."""
    metrics = (
        "# TYPE sglang:load_back_tokens_total counter\n"
        "sglang:load_back_tokens_total 10000\nsglang:load_back_duration_seconds_sum 20\n"
        "sglang:num_running_reqs 3\n"
    )
    assert "offload_slow" not in {one.code for one in examined(metrics).diagnoses}


def test_layers_are_dealt_out_so_that_stages_hold_as_many_tokens(examined) -> None:
    """48 layers, 24 each: stage 0 has room for 3 + 24 x 0.5, stage 1 for 12 + 24 x 0.5 GiB.

    Of 39 GiB, 15 and 24: 48 x 15 / 39 is 18.46, so 18 layers, which leave 6 GiB for KV, a third of
    a GiB each; the others 9 GiB for 30, 0.3 each. Before, it was an eighth each.
    """
    log = "".join(
        f"(Worker_PP{stage} pid=1) {line}\n"
        for stage, available in enumerate((3.0, 12.0))
        for line in (
            "Model loading took 12.0 GiB memory and 3 seconds",
            f"Available KV cache memory: {available} GiB",
        )
    )
    flags = [one.flag for one in told(examined(log, "qwen3-30b-a3b"), "uneven_stages").remedies]
    assert flags == ["VLLM_PP_LAYER_PARTITION=18,30"]


def test_ranks_of_one_stage_are_no_stages(examined) -> None:
    log = "".join(
        f"(Worker_TP{n} pid=1) Available KV cache memory: {3.0 + n} GiB\n" for n in range(2)
    )
    assert "uneven_ranks" in {one.code for one in examined(log).diagnoses}


def test_what_preemptions_cost(examined) -> None:
    """Half of 42,656 tokens for 8 requests are 2,666 each: 60 preemptions drop 159,960."""
    report = examined(TEXTS["recomputed_estimated"])
    assert dict(told(report, "preemption_storm").values)["count"] == "60"
    values = dict(told(report, "recomputed_estimated").values)
    assert values["tokens"] == "159,960"
    assert values["seconds"] == "159,960.0"  # at 1.0 tokens a second, as the line has it


def test_what_sglang_counted_is_no_estimate(examined) -> None:
    report = examined(
        "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 3\n"
        "sglang:num_retracted_requests_total 60\nsglang:num_requests_total 100\n"
        "sglang:num_retracted_input_tokens_total 50000\n"
        "sglang:num_retracted_output_tokens_total 10000\n"
        "sglang:prompt_tokens_total 600000\nsglang:cached_tokens_total 60000\n"
    )
    values = dict(told(report, "recomputed_counted_untimed").values)
    assert values["tokens"] == "60,000"
    assert values["share"] == "10%"  # of 540,000 and these 60,000
    assert told(report, "preemption_storm").severity == "warning"


def test_few_preemptions_of_many_requests_are_no_storm(examined) -> None:
    report = examined(
        "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total 60\n"
        "vllm:request_success_total 100000\n"
    )
    assert told(report, "preemptions").severity == "note"


def test_evictions_beside_the_pool(examined) -> None:
    report = examined(
        "# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs 3\n"
        "sglang:evicted_tokens_total 5000000\nsglang:max_total_num_tokens 1000000\n"
        "sglang:prompt_tokens_total 9000000\nsglang:cached_tokens_total 900000\n"
    )
    assert dict(told(report, "evicted_early_times").values) == {"hits": "10%", "times": "5.0"}


def test_what_a_prompt_keeps_is_told_by_its_first_line(examined) -> None:
    """Further batches of the prompt name their beginning in the same words."""
    series = examined(slot(32768, 5000, 12, 6000) * 12).log.facts.series
    assert (series["kept_tokens"].most, series["kept_tokens"].count) == (12, 12)
    assert series["prompt_tokens"].mean == 5000
    assert "parts_early" in {
        one.code for one in examined(slot(32768, 5000, 12, 6000) * 12).diagnoses
    }


def test_places_that_requests_fill_are_no_waste(examined) -> None:
    log = "llama_context: n_seq_max     = 4\n" + slot(8192, 5000, 12, 6000)
    assert "reservation_waste" not in {one.code for one in examined(log).diagnoses}


def test_tgi_reserves_for_the_longest(examined) -> None:
    """16,384 tokens for 4 requests are 4,096 each, and 500 + 100 are used."""
    report = examined(
        "# TYPE tgi_batch_current_size gauge\ntgi_batch_current_size 4\n"
        "tgi_batch_current_max_tokens 16384\n"
        "tgi_request_input_length_sum 50000\ntgi_request_input_length_count 100\n"
        "tgi_request_generated_tokens_sum 10000\ntgi_request_generated_tokens_count 100\n"
    )
    values = dict(told(report, "reservation_waste").values)
    assert (values["place"], values["used"], values["share"]) == ("4,096", "600", "85%")


def test_a_full_pool_that_requests_wait_for(examined) -> None:
    """Of a vLLM whose KV is in 16 bits; nothing is preempted, and requests wait."""
    log = arguments(gpu_memory_utilization=0.8, tensor_parallel_size=2)
    report = examined(log + statistics(12, 30, 98.0) * 10 + statistics(12, 38, 99.1) * 10)
    diagnosis = told(report, "pool_full")
    assert diagnosis.severity == "warning"
    assert dict(diagnosis.values) == {"full": "99%", "running": "12", "waiting": "38"}
    assert {remedy.flag for remedy in diagnosis.remedies} == {
        "--kv-cache-dtype fp8",
        "--gpu-memory-utilization 0.83",
        "--tensor-parallel-size 4",
    }
    ranks = [remedy.rank for remedy in diagnosis.remedies]
    assert ranks == sorted(ranks)
    assert "fine" not in {one.code for one in report.diagnoses}


@pytest.mark.parametrize(
    "log",
    [
        statistics(12, 0, 98.5) * 20,  # nobody waits
        statistics(12, 0, 98.5) * 20 + statistics(12, 9, 98.5),  # a burst
        statistics(12, 34, 98.5) * 3,  # too few lines to say
        statistics(12, 34, 60.0) * 20,  # room
        statistics(12, 34, 98.5) * 2 + statistics(12, 34, 40.0) * 20,  # full for a moment
    ],
)
def test_what_is_no_full_pool(log: str, examined) -> None:
    assert "pool_full" not in {one.code for one in examined(log).diagnoses}


def test_a_storm_of_preemptions_says_by_itself_that_the_pool_is_full(examined) -> None:
    line = statistics(12, 34, 98.5).replace("reqs, GPU", "reqs, Preemptions: 30, GPU")
    codes = {one.code for one in examined(line * 20).diagnoses}
    assert "preemption_storm" in codes
    assert "pool_full" not in codes


def kvhouse_scrape(kv_format: str, preempted: int) -> str:
    """A pool of 1 GiB, of which 960 MiB are held."""
    return (
        "# TYPE kvhouse_requests_running gauge\nkvhouse_requests_running 12\n"
        "kvhouse_requests_waiting 30\n"
        f'kvhouse_cache_config_info{{block_size="16",kv_format="{kv_format}"}} 1.0\n'
        'kvhouse_kv_bytes{class="used"} 1006632960\nkvhouse_kv_bytes{class="free"} 67108864\n'
        f"kvhouse_preemptions_total {preempted}\n"
        'kvhouse_requests_total{outcome="finished"} 40\n'
    )


@pytest.mark.parametrize(
    ("preempted", "code"), [(0, "pool_full"), (2, "preemptions"), (20, "preemption_storm")]
)
def test_kvhouse_has_flags_of_its_own(preempted: int, code: str, examined) -> None:
    wide = told(examined(kvhouse_scrape("fp32", preempted)), code)
    assert [remedy.flag for remedy in wide.remedies] == ["--kv-memory 2048MiB", "--kv-format int8"]
    narrow = told(examined(kvhouse_scrape("int8", preempted)), code)
    assert [remedy.flag for remedy in narrow.remedies] == ["--kv-memory 2048MiB"]


def test_a_scrape_of_kvhouse_reads_as_one_look_at_our_own_engine(examined) -> None:
    report = examined(kvhouse_scrape("fp32", 20))
    shown = StringIO()
    show_report(Console(file=shown, width=200), report, texts_of("en"))
    text = shown.getvalue()
    assert text.startswith("kvhouse, 8 lines\n")
    assert "Nothing could be derived" not in text
    assert "--model" not in text
    assert "What it printed again and again" not in text
    assert "What the scrape says" in text
    assert not report.derived.reason


def test_one_line_is_one_line(examined) -> None:
    shown = StringIO()
    show_report(Console(file=shown, width=200), examined(statistics(3, 0, 9.0)), texts_of("en"))
    assert shown.getvalue().startswith("vllm, 1 line\n")


def test_a_salt_in_a_prompt_is_no_fact(examined) -> None:
    """The word is looked for in lines of users too, and nothing of them is kept."""
    report = examined(TEXTS["no_hits_salt"])
    assert "b64-of-a-tenant" not in str(report.to_dict(texts_of("en")))


def test_windows_and_states_forget(examined) -> None:
    """vllm-project/vllm issue 42317 and others: a hybrid without one hit."""
    log = (
        "Initializing a V1 LLM engine (v0.11.0) with config: model='m', "
        "enable_prefix_caching=True\n" + statistics(8, 0, 80.0, hits=0.0) * 20
    )
    assert "no_hits_window" in {one.code for one in examined(log, "gemma-3-27b").diagnoses}
    assert "no_hits" in {one.code for one in examined(log, "qwen3-14b").diagnoses}


def test_settings_alone_say_nothing_of_a_server_s_health(examined) -> None:
    report = examined(arguments(max_model_len=8192))
    assert report.found
    assert [one.code for one in report.diagnoses] == ["only_settings"]


def test_a_name_and_a_version_are_no_figures(examined) -> None:
    report = examined("INFO vLLM API server version 0.8.5\n")
    assert report.log.facts.word("engine_version") == "0.8.5"
    assert not report.found
