"""Lines of public vLLM logs beyond the case file: pages, padding, tokens and concurrency."""

from __future__ import annotations

import dataclasses

import pytest

from kvhouse.planner.engines import view
from kvhouse.spec import load
from kvhouse.spec.layers import FullAttention, LatentAttention, State, WithoutKV
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.tensors import Convolution, Tensor

GIB = 2**30


def model(*layers):
    return ModelSpec(
        name="logged",
        architecture="",
        layers=layers,
        hidden_size=1,
        vocab_size=1,
        max_length=2**20,
        parameters=None,
        matmul_parameters=None,
        dtype="bfloat16",
    )


def delta(key_heads, value_heads):
    channels = (2 * key_heads + value_heads) * 128
    state = Tensor(value_heads * 128 * 128, "float32", key_heads, "float32")
    return State((Convolution(channels, 4, units=key_heads), state))


def has(view, *parts):
    log = "\n".join(view.log_lines)
    return [part for part in parts if part not in log] == []


def test_nemotron_cascade_2_30b_on_vllm_0_19():
    # "Setting attention block size to 4176 tokens", "Padding mamba page size by 0.19%".
    mamba = State(
        (
            Convolution(6144, 4, units=64, groups=8, group_channels=256),
            Tensor(64 * 64 * 128, "float32", 64, "float32"),
        ),
        128,
    )
    spec = model(*[FullAttention(32, 2, 128, 128)] * 6, *[mamba] * 23, *[WithoutKV()] * 23)
    seen = view("vllm", spec, version="0.19", kv_dtype="fp8", max_model_len=131072)
    assert has(seen, "attention block size to 4176 tokens", "mamba page size by 0.19%")


def test_qwen3_5_0_8b_on_vllm_0_21():
    # "Setting attention block size to 544 tokens", "Padding mamba page size by 2.64%",
    # "Available KV cache memory: 67.08 GiB", "GPU KV cache size: 5,788,118 tokens, Maximum
    # concurrency for 262,144 tokens per request: 22.08x".
    spec = model(*[FullAttention(8, 2, 256, 256)] * 6, *[delta(16, 16)] * 18)
    options = {"version": "0.21", "max_model_len": 262144, "prefix_caching": True}
    low, high = (
        view("vllm", spec, available_bytes=int(edge * GIB), **options) for edge in (67.075, 67.085)
    )
    assert low.kv_tokens <= 5_788_118 <= high.kv_tokens
    seen = view("vllm", spec, blocks=10_775, **options)
    assert has(seen, "block size to 544", "by 2.64%", "5,788,118 tokens", "22.08x")


def test_lfm2_5_1_2b_on_vllm():
    # "block size to 16 tokens", "Padding mamba page size by 300.00%", "Add 2 padding layers, may
    # waste at most 20.00%", 217,264 tokens, 313.37x for 2,048 tokens.
    conv = State((Convolution(2048, 3, units=2048),))
    spec = model(*[FullAttention(32, 8, 64, 64)] * 6, *[conv] * 10)
    options = {"version": "0.15", "max_model_len": 2048}
    logged = [view("vllm", spec, blocks=blocks, **options) for blocks in (40_737, 40_738, 40_739)]
    assert {seen.kv_tokens for seen in logged} == {217_264}
    assert any(has(seen, "313.37x") for seen in logged)
    assert has(logged[0], "block size to 16", "by 300.00%", "Add 2 padding layers", "20.00%")


@pytest.mark.parametrize(("drafted", "block", "padding"), [(0, 784, "0.13%"), (7, 832, "1.71%")])
def test_qwen3_8_27b_with_and_without_a_drafter(drafted, block, padding):
    # The block of 784 and, with seven drafted tokens, 832 and 1.71 % are from logs; 0.13 % follows:
    # 784 * 4,096 B against 3,207,168 B.
    seen = view(
        "vllm",
        model(*[FullAttention(24, 4, 256, 256)] * 16, *[delta(16, 48)] * 48),
        max_model_len=4096,
        prefix_caching=True,
        speculative_tokens=drafted,
    )
    assert has(seen, f"block size to {block} tokens", f"mamba page size by {padding}")


def test_kimi_linear_on_vllm_0_11():
    # vLLM issue 28228, tp 2: "block size to 960 tokens", "Padding mamba page size by 1.89%".
    kda = State(
        (
            Convolution(3 * 32 * 128, 4, units=32),
            Tensor(32 * 128 * 128, "float32", 32, "float32"),
        )
    )
    spec = model(*[LatentAttention(32, 512, 64)] * 7, *[kda] * 20)
    seen = view("vllm", spec, version="0.11.1", tp=2, max_model_len=120_000)
    assert has(seen, "block size to 960 tokens", "mamba page size by 1.89%")


def test_nemotron_nano_9b_v2_on_vllm_0_10():
    # vLLM issue 24280: pages of 672 tokens.
    mamba = State(
        (
            Convolution(12_288, 4, units=128, groups=8, group_channels=256),
            Tensor(128 * 80 * 128, "float32", 128),
        ),
        128,
    )
    spec = model(*[FullAttention(40, 8, 128, 128)] * 4, *[mamba] * 27)
    seen = view("vllm", spec, version="0.10.1", max_model_len=131_072)
    assert has(seen, "block size to 672 tokens")


def test_gemma_4_31b_on_vllm_0_20():
    # hf-mem PR 61: "Available KV cache memory: 24.54 GiB", "GPU KV cache size: 26,800 tokens".
    spec = load("gemma-4-31b-nvfp4")
    low, high = (
        view(
            "vllm",
            spec,
            version="0.20.0",
            available_bytes=int(edge * GIB),
            max_num_batched_tokens=8192,
            max_model_len=32_768,
        )
        for edge in (24.535, 24.545)
    )
    assert low.kv_tokens <= 26_800 <= high.kv_tokens
    assert high.kv_tokens - low.kv_tokens <= 16


def test_llama_3_1_8b_on_vllm_0_6():
    # vLLM issue 10517, an RTX 3090: kv_cache_size=3.81GiB, 1952 blocks on the GPU and 2048 on the
    # CPU, 1.56x for 20,000 tokens.
    spec = load("llama-3.1-8b")
    low, high = (
        view(
            "vllm-v0", spec, version="0.6.4", available_bytes=int(edge * GIB), max_model_len=20_000
        )
        for edge in (3.805, 3.815)
    )
    assert low.blocks <= 1952 <= high.blocks
    seen = view("vllm-v0", spec, version="0.6.4", blocks=1952, max_model_len=20_000)
    assert has(seen, "# GPU blocks: 1952, # CPU blocks: 2048", "20000 tokens per request: 1.56x")


def test_qwen3_coder_30b_on_two_stages():
    # vLLM issue 34076 (0.15.2): 24.0 GiB asked of each of two stages, and a longest of 34,736
    # tokens in 3.18 GiB; later versions ask each stage for its own layers.
    spec = load("qwen3-30b-a3b")
    spec = dataclasses.replace(spec, max_length=2**18)
    old, new = (
        view("vllm", spec, version=version, pp=2, max_model_len=262_144, available_bytes=memory)
        for version, memory in (("0.15.1", int(3.185 * GIB)), ("0.19", int(3.185 * GIB)))
    )
    assert old.needed_bytes() == 24 * GIB == 2 * new.needed_bytes()
    assert 34_736 <= old.estimated_max_len <= 34_736 + 64
    assert old.blocks == new.blocks


def test_prediction_layers_join_the_full_attention_group():
    # club-3090 issue 91: 619,479 tokens, 2.36x for 262,144, three layers of padding.
    seen = view(
        "vllm",
        load("qwen3.5-27b"),
        version="0.20.1",
        tp=2,
        kv_dtype="fp8_e5m2",
        max_model_len=262_144,
        prefix_caching=True,
        speculative_tokens=3,
        blocks=423,
    )
    assert {group.layers + group.padding for group in seen.groups} == {17}
    assert has(seen, "Add 3 padding layers", "619,479 tokens", "2.36x")


def test_smollm2_on_vllm_for_cpus():
    # VLLM_CPU_KVCACHE_SPACE=4: blocks of 128 tokens, 186,368 tokens, 45.50x for 4,096.
    spec = load("smollm2")
    seen = view("vllm", spec, block_size=128, available_bytes=4 * GIB, max_model_len=4096)
    assert seen.kv_tokens == 186_368
    assert has(seen, "GPU KV cache size: 186,368 tokens", "for 4,096 tokens per request: 45.50x")


def test_one_pool_prints_many_sizes():
    # vLLM issue 54458: the same pool printed 260,006 tokens at 8k and 1,077,542 at 262k; for a
    # hybrid, tokens grow with the length that is asked for, while blocks do not.
    spec = load("qwen3-next-80b-a3b")
    short, long = (
        view("vllm", spec, available_bytes=20 * GIB, max_model_len=length)
        for length in (8192, 262_144)
    )
    assert short.blocks == long.blocks
    # Blocks of 544 tokens, three groups with a state each beside them.
    assert short.kv_tokens == int(short.blocks / (16 + 3) * 8192)
    assert long.kv_tokens == int(long.blocks / (482 + 3) * 262_144)
