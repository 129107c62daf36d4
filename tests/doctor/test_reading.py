"""Logs as they come: wrapped, coloured, mixed, restarted, in several encodings."""

from __future__ import annotations

import json

import pytest

POOL = "Available KV cache memory: 6.51 GiB"
TOKENS = "GPU KV cache size: 42,656 tokens"
LENGTH = "Maximum concurrency for 32,768 tokens per request: 1.30x"
SERVER = (
    "(EngineCore_DP0 pid=212) INFO 10-06 12:00:31 [core.py:109] Initializing a V1 LLM engine "
    "(v0.11.0) with config: model='Qwen/Qwen3-14B', dtype=torch.bfloat16, max_seq_len=32768, "
    "tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto"
)
LOG = "\n".join((SERVER, POOL, TOKENS, LENGTH, ""))


def _pod(line: str) -> str:
    return f"[pod/vllm-0/server] 2025-10-06T12:00:31.1Z {line}"


def _json(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stdout", "time": "2025-10-06T12:00:31Z"})


WRAPPINGS = {
    "plain": str,
    "colours": lambda line: f"\x1b[1;36m(EngineCore pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m {line}",
    "inside": lambda line: line.replace("cache", "\x1b[1mcache\x1b[0m", 1),
    "json": _json,
    "json colours": lambda line: _json(f"\x1b[36m{line}\x1b[0m"),
    "compose": lambda line: f"vllm-1  | {line}",
    "kubectl": _pod,
    "windows": lambda line: line + "\r",
}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_a_wrapped_log_says_the_same(name, examined) -> None:
    text = "\n".join(map(WRAPPINGS[name], LOG.splitlines())) + "\n"
    report = examined(text)
    facts = report.log.facts
    assert facts.number("available_kv_gib") == 6.51
    assert facts.count("kv_tokens") == 42656
    assert facts.number("max_concurrency") == 1.3
    assert facts.word("engine_version") == "0.11.0"
    assert report.derived.agrees
    assert report.model == "qwen3-14b"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings(encoding, examined) -> None:
    content = LOG.encode(encoding)
    if encoding == "utf-16-be":
        content = b"\xfe\xff" + content
    assert examined(content).log.facts.count("kv_tokens") == 42656


def test_lines_are_counted(examined) -> None:
    report = examined("noise\n" * 1000 + TOKENS + "\nnoise\nlast")
    fact = report.log.facts.one("kv_tokens")
    assert fact is not None
    assert fact.line == 1001
    assert report.log.lines == 1003


def test_lines_are_counted_across_chunks(examined) -> None:
    filler = "x" * 999 + "\n"
    report = examined(filler * 3000 + TOKENS + "\n" + filler * 2000 + POOL + "\n")
    assert [fact.line for fact in report.facts] == [3001, 5002]
    assert report.log.lines == 5002


def test_workers_are_merged_when_equal_and_told_apart_when_not(examined) -> None:
    def line(rank: int, size: float) -> str:
        return f"(Worker_TP{rank} pid={100 + rank}) INFO Available KV cache memory: {size} GiB\n"

    equal = examined(line(0, 6.5) + line(1, 6.5))
    assert equal.log.workers == ("Worker_TP0", "Worker_TP1")
    assert len(equal.log.facts.told_apart("available_kv_gib")) == 1
    unequal = examined(line(0, 6.5) + line(1, 4.5))
    assert len(unequal.log.facts.told_apart("available_kv_gib")) == 2
    assert unequal.log.facts.number("available_kv_gib") == 4.5
    assert "uneven_ranks" in {one.code for one in unequal.diagnoses}


@pytest.mark.parametrize(
    ("prefix", "worker"),
    [
        ("(VllmWorker rank=1 pid=254) ", "VllmWorker rank=1"),
        ("(VllmWorker TP1 pid=406) ", "VllmWorker TP1"),
        ("(VllmWorkerProcess pid=532) ", "VllmWorkerProcess 532"),
        ("(EngineCore_DP0 pid=212) ", "EngineCore_DP0"),
        ("(RayWorkerWrapper pid=99, ip=10.0.0.1) ", "RayWorkerWrapper 99"),
        ("[rank3]: ", "rank 3"),
        ("[2025-02-14 00:42:22 DP2 TP2] ", "DP2 TP2"),
        ("(head, rank=0, pid=18260) ", "rank 0"),
        ("[TRT-LLM AUTO-DEPLOY] [RANK 0] [I] ", "rank 0"),
        ("vllm-rs-med1  | ", "vllm-rs-med1"),
        ("", ""),
    ],
)
def test_workers_have_names(prefix: str, worker: str, examined) -> None:
    fact = examined(prefix + TOKENS).log.facts.one("kv_tokens")
    assert fact is not None
    assert fact.worker == worker


def test_the_last_of_several_starts_counts(examined) -> None:
    failed = "ValueError: No available memory for the cache blocks. Try increasing"
    report = examined("\n".join((SERVER, failed, LOG)))
    assert report.log.runs == 2
    assert "error" not in report.log.facts
    assert report.diagnoses[0].code == "fine"


def test_what_users_wrote_is_no_fact(examined) -> None:
    forged = f"INFO Received request cmpl-1: prompt: '{TOKENS}', params: SamplingParams(n=1)"
    assert not examined(forged).found


def test_statistics_are_summed(examined) -> None:
    def line(running: int, usage: float) -> str:
        return (
            f"INFO 02-25 20:49:56 [loggers.py:127] Engine 000: Avg prompt throughput: 67.6 "
            f"tokens/s, Avg generation throughput: 75.0 tokens/s, Running: {running} reqs, "
            f"Waiting: 0 reqs, GPU KV cache usage: {usage}%, Prefix cache hit rate: 54.2%\n"
        )

    series = examined(line(4, 13.9) + line(9, 45.5) + line(2, 3.0)).log.facts.series
    usage = series["usage_pct"]
    assert (usage.count, usage.least, usage.most, usage.last) == (3, 3.0, 45.5, 3.0)
    assert usage.peak.line == 2
    assert series["running"].mean == 5


def test_llama_cpp_windows_are_two_caches(examined) -> None:
    facts = examined(
        "llama_kv_cache_iswa: creating non-SWA KV cache, size = 131072 cells\n"
        "llama_kv_cache: size = 1792.00 MiB (131072 cells,  14 layers,  1/1 seqs), "
        "K (f16):  896.00 MiB, V (f16):  896.00 MiB\n"
        "llama_kv_cache_iswa: creating     SWA KV cache, size = 2560 cells\n"
        "llama_kv_cache: size =  105.00 MiB ( 2560 cells,  42 layers,  1/1 seqs), "
        "K (f16):  52.50 MiB, V (f16):  52.50 MiB\n"
    ).log.facts
    assert facts.number("non_swa_mib") == 1792
    assert facts.count("swa_cells") == 2560
    assert facts.count("swa_layers") == 42


def test_a_draft_model_s_pool_is_kept_apart(examined) -> None:
    facts = examined(
        "KV Cache is allocated. #tokens: 454112, K size: 3.46 GB, V size: 3.46 GB\n"
        "KV Cache is allocated. #tokens: 454112, K size: 1.08 GB, V size: 1.08 GB\n"
    ).log.facts
    assert facts.number("k_size_gb") == 3.46
    assert facts.number("draft_k_size_gb") == 1.08


def test_a_draft_s_weights_and_graphs_are_kept_apart(examined) -> None:
    """Sizes of https://github.com/sgl-project/sglang/pull/35996 and issues/10088."""
    report = examined(
        "[2026-08-22 10:00:00] Load weight begin. avail mem=77.98 GB\n"
        "[2026-08-22 10:00:10] Load weight end. elapsed=10.00 s, "
        "type=Qwen3_5ForConditionalGeneration, avail mem=49.59 GB, mem usage=28.39 GB.\n"
        "[2026-08-22 10:00:11] Load weight begin. avail mem=49.59 GB\n"
        "[2026-08-22 10:00:12] Load weight end. elapsed=1.00 s, "
        "type=Qwen3_5ForCausalLMMTP, avail mem=44.41 GB, mem usage=5.18 GB.\n"
        "[2026-08-22 10:00:20] Capture cuda graph end. Time elapsed: 12.11 s. "
        "mem usage=0.54 GB. avail mem=16.74 GB.\n"
        "[2026-08-22 10:00:30] Capture draft cuda graph end. Time elapsed: 62.67 s. "
        "mem usage=0.21 GB. avail mem=15.31 GB.\n"
    )
    facts = report.log.facts
    assert facts.number("avail_before_load_gb") == 77.98
    assert (facts.number("weights_gb"), facts.number("draft_weights_gb")) == (28.39, 5.18)
    assert (facts.number("graph_gb"), facts.number("draft_graph_gb")) == (0.54, 0.21)
    parts = dict(report.bar.parts)
    assert parts["weights"] / 2**30 == pytest.approx(28.39 + 5.18)
    assert parts["graphs"] / 2**30 == pytest.approx(0.54 + 0.21)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8"),
        ("NousResearch/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Gemma 3 270m", "gemma-3-270m"),
        ("models/google_gemma-3-27b-it", ""),
        ("my-llama-3.1-8b", ""),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", ""),
    ],
)
def test_a_model_is_known_by_its_name_without_what_tunes_it(name, known, examined) -> None:
    """Another size, or another family, is never taken for one that has a like name."""
    log = (
        f"Initializing a V1 LLM engine (v0.9.0) with config: model='{name}', dtype=torch.bfloat16\n"
    )
    assert examined(log).model == known


def test_json_behind_a_container_s_name_is_read(examined) -> None:
    line = (
        'vllm-1  | {"log":"non-default args: {\\"model\\": \\"m\\", \\"max_model_len\\": '
        '8192}\\n","stream":"stdout"}\n'
    )
    assert examined(line).log.facts.count("max_model_len") == 8192
