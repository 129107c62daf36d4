"""Lines of public vLLM logs beyond the case file: pages, padding, tokens and concurrency."""

from __future__ import annotations

import pytest

from kvhouse.planner.engines import view
from kvhouse.spec import load
from kvhouse.spec.layers import Convolution, FullAttention, State, Tensor, WithoutKV
from kvhouse.spec.model import ModelSpec

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
