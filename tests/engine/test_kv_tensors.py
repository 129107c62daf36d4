"""The tensors of the pool take the bytes that the layout promises, and no others."""

from __future__ import annotations

import pytest
import torch

from kvhouse.engine.kv import KVTensors, available_memory
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.spec import FullAttention, ModelSpec, SlidingAttention, State
from kvhouse.spec.layers import Tensor

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def spec(*layers: FullAttention) -> ModelSpec:
    return ModelSpec("test", "TestForCausalLM", layers, 64, 100, 128, 0, 0, "float32")


@pytest.mark.parametrize("kv_format", ELEMENT_BYTES)
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize(
    ("kv_heads", "key_dim", "value_dim"), [(1, 8, 8), (3, 64, 64), (2, 24, 16)]
)
def test_bytes_are_exact(kv_format, block_size, kv_heads, key_dim, value_dim):
    layout = KVLayout.of(
        spec(*(FullAttention(6, kv_heads, key_dim, value_dim),) * 5), kv_format, block_size
    )
    kv = KVTensors(layout, 11)
    by_hand = 5 * 11 * block_size * kv_heads * (key_dim + value_dim) * ELEMENT_BYTES[kv_format]
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for layer in range(kv.layers)
        for tensor in kv.slots(layer)
    }
    assert kv.nbytes == sum(storages.values()) == layout.block_bytes * 11 == by_hand
    assert kv.layers == 5


def test_layers_do_not_overlap_and_fill_the_pool():
    layout = KVLayout.of(spec(FullAttention(4, 2, 6, 4), FullAttention(4, 1, 8, 8)), "fp32", 4)
    kv = KVTensors(layout, 3)
    tensors = [tensor for layer in range(2) for tensor in kv.slots(layer)]
    for value, tensor in enumerate(tensors):
        tensor.fill_(value)
    assert all(torch.all(tensor == value) for value, tensor in enumerate(tensors))
    assert sum(tensor.numel() for tensor in tensors) * 4 == kv.nbytes


def test_a_slot_is_a_block_and_an_offset():
    kv = KVTensors(KVLayout.of(spec(FullAttention(4, 2, 6, 4)), "fp32", 4), 3)
    slots, blocks = kv.slots(0), kv.block_view(0)
    assert [view.shape for view in blocks] == [(3, 4, 2, 6), (3, 4, 2, 4)]
    for flat, view in zip(slots, blocks, strict=True):
        flat[2 * 4 + 3] = 5.0
        assert torch.all(view[2, 3] == 5.0)


def test_more_than_the_machine_has_is_refused_before_it_is_touched():
    available = available_memory()
    assert available is not None
    layout = KVLayout.of(spec(FullAttention(8, 8, 128, 128)), "fp32", 16)
    blocks = 2 * available // layout.block_bytes
    with pytest.raises(
        KvhouseError, match=f"cannot allocate {blocks * layout.block_bytes:,} bytes"
    ):
        KVTensors(layout, blocks)


@pytest.mark.parametrize(
    ("layers", "kv_format", "reason"),
    [
        ((SlidingAttention(4, 2, 8, 8, window=5),), "fp32", "several kinds: sliding window$"),
        ((FullAttention(4, 2, 8, 8), State((Tensor(8),))), "fp32", "full attention, state$"),
        ((FullAttention(4, 2, 8, 8),), "int8", "KV format int8: .* formats without scales only"),
    ],
)
def test_what_it_cannot_hold_is_refused_by_name(layers, kv_format, reason):
    layout = KVLayout.of(spec(*layers), kv_format, 4)
    with pytest.raises(KvhouseError, match=reason):
        KVTensors(layout, 3)
