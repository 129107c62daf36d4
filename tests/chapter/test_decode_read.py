"""Chapter: decode is a read. 7B, fp16, n = 4096, A100 at 2.0 TB/s."""

import pytest

from kvhouse.costs import Roofline
from kvhouse.devices import Device
from kvhouse.layout import KVLayout
from kvhouse.spec.model import FullAttention, ModelSpec

LAYERS, HIDDEN, HEADS, HEAD_DIM = 32, 4096, 32, 128
CONTEXT = 4096
A100 = Device(
    "a100", "A100 as in the chapter", 80 * 2**30, 2.0e12, {"float16": 312e12}, "datasheet", ""
)
# The chapter rounds the model to 7e9 parameters of 2 bytes: 14 GB.
SEVEN_B = ModelSpec(
    name="7b",
    architecture="LlamaForCausalLM",
    layers=(FullAttention(HEADS, HEADS, HEAD_DIM, HEAD_DIM),) * LAYERS,
    hidden_size=HIDDEN,
    vocab_size=32000,
    max_length=4096,
    parameters=7_000_000_000,
    matmul_parameters=7_000_000_000,
    dtype="float16",
)


@pytest.fixture
def step():
    return Roofline(SEVEN_B, KVLayout.of(SEVEN_B, "fp16"), A100).decode_floor(1, CONTEXT)


def test_one_token_reads_about_2_1e9_bytes_of_kv(step):
    assert step.kv_read_bytes == 2 * CONTEXT * LAYERS * HIDDEN * 2
    assert step.kv_read_bytes == pytest.approx(2.1e9, rel=0.03)


def test_kv_alone_takes_at_least_a_millisecond(step):
    seconds = step.kv_read_bytes / A100.bandwidth
    assert seconds >= 1e-3
    assert 1 / seconds == pytest.approx(1000, rel=0.1)


def test_with_the_weights_about_120_tokens_a_second(step):
    assert step.weight_bytes == 14_000_000_000
    assert step.bound == "bandwidth"
    assert 1 / step.seconds == pytest.approx(120, rel=0.05)
