"""Single lines of further versions and builds than the cases have."""

from __future__ import annotations

import pytest

LINES = [
    ("executor_base.py:113] # cuda blocks: 190100, # CPU blocks: 0", "gpu_blocks", 190100),
    ("# neuron blocks: 4, # CPU blocks: 0", "gpu_blocks", 4),
    (
        "INFO [gpu_model_runner.py:1289] Model loading took 14.9888 GiB and 13.2 seconds",
        "model_loading_gib",
        14.9888,
    ),
    ("Graph capturing finished in 18 secs, took 0.62 GiB", "graph_gib", 0.62),
    (
        "GPU KV cache size: 443,628 tokens, Maximum concurrency for 131,072 tokens per "
        "request: 3.38x",
        "max_concurrency",
        3.38,
    ),
    (
        "Initial free memory 137.66 GiB, reserved 6.0 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling.",
        "available_kv_gib",
        6.0,
    ),
    (
        "Actual usage is 24.58 GiB for consumed memory (weights + non-torch), 1.46 GiB for peak "
        "activation, and 0.49 GiB for CUDAGraph memory. Replace gpu_memory_utilization config",
        "consumed_gib",
        24.58,
    ),
    (
        "Memory profiling takes 6.42 seconds. Total non KV cache memory: 16.51GiB; "
        "torch peak memory "
        "increase: 1.21GiB; non-torch forward increase memory: 0.21GiB; weights memory: 14.99GiB.",
        "weights_gib",
        14.99,
    ),
    ("Prefix cache hit rate: GPU: 94.87%, CPU: 0.00%", None, 94.87),
    (
        "WARNING 05-09 00:49:33 scheduler.py:1057 Sequence group 0 is preempted by "
        "PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect "
        "the end-to-end performance. total_cumulative_preemption_cnt=1",
        None,
        1,
    ),
    (
        "Load weight end. elapsed=429.52 s, type=X, quant=fp8, fmt=e4m3, avail mem=50.01 GB, mem "
        "usage=28.47 GB.",
        "weights_gb",
        28.47,
    ),
    (
        "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1226984, KV size: 9.21 GB",
        "kv_size_gb",
        9.21,
    ),
    (
        "Mamba Cache is allocated. max_mamba_cache_size: 22, conv_state size: 0.06GB, "
        "ssm_state size: "
        "3.23GB intermediate_ssm_state_cache size: 2.25GB",
        "ssm_state_gb",
        3.23,
    ),
    (
        "Capture cuda graph end. Time elapsed: 7.23 s. avail mem=0.53 GB. mem usage=0.93 GB.",
        "graph_gb",
        0.93,
    ),
    (
        "Capture target decode CUDA graph end. elapsed=54.61 s, mem usage=1.93 GB, "
        "avail mem=8.16 GB",
        "graph_gb",
        1.93,
    ),
    (
        "Capture piecewise CUDA graph end. Time elapsed: 3.20 s. mem usage=0.45 GB. "
        "avail mem=9.03 GB.",
        "prefill_graph_gb",
        0.45,
    ),
    (
        "Capture draft extend cuda graph end. Time elapsed: 2.11 s. mem usage=0.12 GB. "
        "avail mem=8.91 GB.",
        "draft_extend_graph_gb",
        0.12,
    ),
    (
        "max_total_num_tokens=298447, chunked_prefill_size=2048, max_prefill_tokens=16384, "
        "max_running_requests=3730, context_len=40960, available_gpu_mem=2.82 GB",
        "max_total_num_tokens",
        298447,
    ),
    (
        "Decode batch. #running-req: 66, #token: 84642, token usage: 0.97, cuda graph: False, gen "
        "throughput (token/s): 2574.67, #queue-req: 11",
        None,
        66,
    ),
    (
        "Decode batch, #running-req: 66, #full token: 84642, full token usage: 0.97, mamba num: 3",
        None,
        66,
    ),
    (
        "Prefill batch. #new-seq: 1, #new-token: 7, #cached-token: 5, token usage: 0.00, "
        "#running-req: 1, #queue-req: 0,",
        None,
        7,
    ),
    (
        "llama_kv_cache_unified: size = 18432.00 MiB (131072 cells,  36 layers,  1/ 1 "
        "seqs), K (f16): "
        "9216.00 MiB, V (f16): 9216.00 MiB",
        "kv_mib",
        18432.0,
    ),
    (
        "llama_kv_cache_unified: size =  128.00 MiB (  4096 cells,  16 layers,  1 "
        "seqs), K (q8_0):   "
        "64.00 MiB, V (q8_0):   64.00 MiB",
        "type_k",
        "q8_0",
    ),
    (
        "llama_kv_cache: RPC[172.31.27.42:50052] KV buffer size =   656.00 MiB",
        "kv_buffer:RPC[172.31.27.42:50052]_mib",
        656.0,
    ),
    (
        "0.27.840.260 I llama_memory_recurrent: size =   50.25 MiB (     1 cells,  32 "
        "layers,  1 seqs "
        " 0 rs_seq), R (f32):    2.25 MiB, S (f32):   48.00 MiB",
        "recurrent_mib",
        50.25,
    ),
    ("load_tensors:        CUDA0 model buffer size =  4861.28 MiB", "model:CUDA0_mib", 4861.28),
    ("sched_reserve:      CUDA0 compute buffer size =   493.00 MiB", "compute:CUDA0_mib", 493.0),
    ("llama_init_from_file: kv self size  =  400.00 MB", "kv_mib", 400.0),
    ("whisper_init_state: kv self size  =    3.15 MB", "kv_self", 3.15),
    ("build: 6895 (4341dc8bc) with cc (GCC) 15.2.1", "build_number", 6895),
    (
        "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv "
        "cache: total: 79.10 "
        "GiB, available: 70.48 GiB",
        "free_gib",
        70.48,
    ),
    ("[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 4060", "blocks", 4060),
    (
        "[TensorRT-LLM][INFO] Using 31616 total tokens in paged KV cache, and 16 blocks "
        "per sequence",
        "tokens",
        31616,
    ),
    (
        "[TRT-LLM] [I] max_seq_len=8224, max_num_requests=64, max_num_tokens=8192, "
        "max_batch_size=64",
        "max_num_requests",
        64,
    ),
    (
        '{"timestamp":"2024-03-09T05:08:19Z","level":"INFO","message":"Setting max '
        "batch total tokens "
        'to 133696","target":"text_generation_router"}',
        "max_batch_total_tokens",
        133696,
    ),
    (
        'Args { model_id: "bigscience/bloom", revision: None, num_shard: Some(8), '
        "max_total_tokens: "
        "Some(4096), cuda_memory_fraction: 0.9 }",
        "tp",
        8,
    ),
    (
        'Error: Warmup(Generation("Not enough memory to handle 4096 prefill tokens. You need to '
        'decrease `--max-batch-prefill-tokens`"))',
        "prefill_tokens",
        4096,
    ),
    (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 4; 31.75 GiB total "
        "capacity; 30.29 GiB already allocated; 3.75 MiB free; 30.40 GiB reserved in "
        "total by PyTorch)",
        "oom_reserved_bytes",
        int(30.40 * 2**30),
    ),
    (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 5.96 GiB. GPU 0 has a "
        "total capacty "
        "of 23.69 GiB of which 5.25 GiB is free. Process 2006998 has 256.00 MiB memory in use.",
        "oom_others_bytes",
        2**28,
    ),
    (
        "KVCache Allocation: 8192 GPU blocks (32.00 GB x 4), max usable kvcache tokens 524288 (64k "
        "bytes per token), scheduling limits [2 seqs x 262144 tokens]",
        "kv_tokens",
        524288,
    ),
    (
        "vllm serve org/m --max-model-len=8192 -tp 2 --enable-prefix-caching --api-key s3cret",
        "tp",
        2,
    ),
    (
        "python -m sglang.launch_server --model-path org/m --tp-size 4 --mem-fraction-static 0.85",
        "mem_fraction_static",
        0.85,
    ),
]


@pytest.mark.parametrize(("text", "name", "value"), LINES, ids=lambda one: str(one)[:36])
def test_a_line_gives_its_figure(text: str, name: str | None, value: object, examined) -> None:
    facts = examined(text + "\n").log.facts
    if name is None:
        assert next(iter(facts.series.values())).last == value
        return
    fact = facts.one(name)
    assert fact is not None, list(facts.by_name)
    assert fact.value == value
