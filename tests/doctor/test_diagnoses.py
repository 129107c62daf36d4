"""Each cause from lines that engines print when it strikes; the numbers are those of the lines."""

from __future__ import annotations

import pytest

from kvhouse.doctor import Report
from kvhouse.doctor.diagnoses.base import Diagnosis

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
