"""The longest request: what submitting every length one by one accepts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhouse.core.memory import make_memory
from kvhouse.core.policy import POLICIES
from kvhouse.core.rejection import longest_request, most_new_tokens
from kvhouse.core.scheduler import Scheduler, SchedulerConfig
from kvhouse.errors import RequestRejected
from kvhouse.layout import KVLayout
from kvhouse.spec.layers import FullAttention, SlidingAttention
from kvhouse.spec.model import ModelSpec

FULL = FullAttention(query_heads=4, kv_heads=2, key_dim=8, value_dim=8)
WINDOW = SlidingAttention(query_heads=4, kv_heads=2, key_dim=8, value_dim=8, window=7)


def scheduler_of(layers, policy, blocks, block_size, max_length):
    spec = ModelSpec(
        name="tiny",
        architecture="TinyForCausalLM",
        layers=layers,
        hidden_size=32,
        vocab_size=100,
        max_length=4096,
        parameters=1000,
        matmul_parameters=900,
        dtype="float32",
    )
    layout = KVLayout.of(spec, "fp16", block_size)
    memory = make_memory(policy, layout, blocks, max_length, 0.0)
    return Scheduler(memory, SchedulerConfig(max_length=max_length))


def accepts(scheduler, prompt, new):
    try:
        scheduler.submit(prompt, new)
    except RequestRejected:
        return False
    return True


@pytest.mark.parametrize("layers", [(FULL,) * 2, (FULL, WINDOW), (WINDOW,) * 2])
@pytest.mark.parametrize("policy", POLICIES)
@given(blocks=st.integers(1, 9), block_size=st.integers(1, 5), max_length=st.integers(2, 24))
def test_the_most_that_is_said_to_fit_is_the_most_that_is_taken(
    layers, policy, blocks, block_size, max_length
):
    scheduler = scheduler_of(layers, policy, blocks, block_size, max_length)
    longest = 0
    for prompt in range(1, max_length + 2):
        taken = [new for new in range(1, max_length + 2) if accepts(scheduler, prompt, new)]
        assert taken == list(range(1, len(taken) + 1))
        assert most_new_tokens(prompt, scheduler.memory, max_length) == len(taken)
        if taken:
            longest = max(longest, prompt + taken[-1])
    assert longest_request(scheduler.memory, max_length) == longest
