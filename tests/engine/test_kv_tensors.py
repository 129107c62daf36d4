"""The tensors of the pool take the bytes that the layout promises, and no others."""

from __future__ import annotations

import mmap

import pytest
import torch

from kvhouse.engine.available import available_memory
from kvhouse.engine.kv import KVTensors
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.spec import FullAttention, ModelSpec, SlidingAttention
from kvhouse.spec.layers import CrossAttention, Indexer, LatentAttention, Layer, SharedKV, State
from kvhouse.spec.tensors import Tensor

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def spec(*layers: Layer) -> ModelSpec:
    return ModelSpec("test", "TestForCausalLM", layers, 64, 100, 128, 0, 0, "float32")


def pool(
    *layers: Layer,
    kv_format="fp32",
    block_size=4,
    blocks=3,
    slots=0,
    rotate=None,
    **options,
) -> KVTensors:
    model = spec(*layers)
    layout = KVLayout.of(model, kv_format, block_size, **options)
    return KVTensors(model, layout, PoolSize(blocks, slots), rotate=rotate)


def tensors(kv: KVTensors) -> list[torch.Tensor]:
    each = [vectors for layer in kv.layers.values() for vectors in layer.vectors]
    return [t for vectors in each for t in (vectors.data, vectors.scales) if t is not None]


@pytest.mark.parametrize("kv_format", ELEMENT_BYTES)
@pytest.mark.parametrize("block_size", [1, 7, 16])
@pytest.mark.parametrize(
    ("kv_heads", "key_dim", "value_dim"), [(1, 8, 8), (3, 64, 64), (2, 24, 16)]
)
def test_bytes_are_exact(kv_format, block_size, kv_heads, key_dim, value_dim):
    layers = (FullAttention(6, kv_heads, key_dim, value_dim),) * 5
    kv = pool(*layers, kv_format=kv_format, block_size=block_size, blocks=11)
    by_hand = 5 * 11 * block_size * kv_heads * (key_dim + value_dim) * ELEMENT_BYTES[kv_format]
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors(kv)
    }
    assert kv.nbytes == sum(storages.values()) == kv.layout.block_bytes * 11 == by_hand
    assert list(kv.layers) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kv_format", ["bf16", "fp32", "fp8", "int8", "int4"])
@pytest.mark.parametrize(
    "layers",
    [
        (FullAttention(4, 2, 32, 64), FullAttention(4, 1, 8, 8)),
        (SlidingAttention(4, 2, 16, 16, window=5),) * 5 + (FullAttention(4, 2, 16, 16),) * 3,
        (SlidingAttention(4, 2, 16, 16, window=5), FullAttention(4, 1, 64, 32)) * 2,
        (LatentAttention(4, 32, 16),) * 3,
    ],
)
def test_no_two_layers_of_a_group_overlap(layers, kv_format):
    """And they fill a block but for the padding that the layout states."""
    kv = pool(*layers, kv_format=kv_format, blocks=3)
    assert sorted(kv.layers) == list(range(len(layers)))
    for index, group in enumerate(kv.layout.groups):
        kv.write_block(1, torch.zeros(kv.layout.block_bytes, dtype=torch.uint8))
        mine = [layer for layer in kv.layers.values() if layer.group == index]
        assert len(mine) == len(group.layers)
        for vectors in (vectors for layer in mine for vectors in layer.vectors):
            for tensor in (vectors.data, vectors.scales):
                if tensor is not None:
                    written = tensor[1].flatten().view(torch.uint8)
                    assert not written.any()
                    filled = torch.full_like(written, 255).view(tensor.dtype)
                    tensor[1] = filled.view(tensor.shape[1:])
        assert int((kv.read_block(1) == 255).sum()) == group.layer_bytes


def test_a_layer_lies_in_its_groups_blocks_by_its_number():
    window, full = SlidingAttention(4, 2, 16, 16, window=5), FullAttention(4, 2, 16, 16)
    kv = pool(window, SharedKV(), full, window)
    assert {number: layer.reach.kind for number, layer in kv.layers.items()} == {
        0: "window",
        2: "all",
        3: "window",
    }
    assert all(kv.layout.groups[kv.layers[n].group].reach.kind == "window" for n in (0, 3))
    assert kv.layers[0].vectors[0].data.shape == (3, 4, 2, 16)


def test_what_is_read_from_a_block_can_be_written_to_another():
    kv = pool(FullAttention(4, 2, 6, 4), FullAttention(4, 1, 8, 8))
    for value, tensor in enumerate(tensors(kv)):
        tensor[0] = value + 1.0
    kv.write_block(2, kv.read_block(0))
    for value, tensor in enumerate(tensors(kv)):
        assert torch.all(tensor[2] == value + 1.0)


def test_elements_lie_where_the_layout_says():
    """A block's keys lie head by head and element by element, its values token by token."""
    kv = pool(FullAttention(4, 2, 3, 2), block_size=4, blocks=2)
    keys, values = kv.layers[0].vectors
    for token in range(4):
        at = torch.tensor([1]), torch.tensor([token])
        for head in range(2):
            keys.data[1, token, head] = torch.arange(3) + 10.0 * token + 100 * head
            values.data[at[0], at[1], head] = torch.arange(2) + 10.0 * token + 100 * head
    lying = kv.read_block(1).view(torch.float32)
    by_hand = [100 * h + 10 * t + e for h in range(2) for e in range(3) for t in range(4)]
    by_hand += [100 * h + 10 * t + e for h in range(2) for t in range(4) for e in range(2)]
    assert lying.tolist() == by_hand


def test_only_keys_and_values_of_whole_numbers_are_rotated():
    full, latent = FullAttention(4, 2, 8, 8), LatentAttention(4, 32, 16)
    assert not any(v.rotated for v in pool(full, kv_format="int8").layers[0].vectors)
    assert all(v.rotated for v in pool(full, kv_format="int8", rotate=True).layers[0].vectors)
    assert all(v.rotated for v in pool(full, kv_format="int4").layers[0].vectors)
    assert not any(v.rotated for v in pool(full, kv_format="int4", rotate=False).layers[0].vectors)
    assert not any(v.rotated for v in pool(latent, kv_format="int4").layers[0].vectors)
    with pytest.raises(KvhouseError, match="KV format bf16 cannot be rotated: int8 and int4 can"):
        pool(full, kv_format="bf16", rotate=True)
    with pytest.raises(KvhouseError, match=r"this model keeps latent \(MLA\): leave"):
        pool(latent, kv_format="int4", rotate=True)


def test_states_have_slots_of_their_own():
    kv = pool(FullAttention(4, 2, 8, 8), State((Tensor(8, "float32"),)), slots=5)
    assert kv.states.shape == (5, 32)
    assert kv.nbytes == 3 * kv.layout.block_bytes + 5 * 32


def test_a_large_pool_begins_at_a_huge_page_and_keeps_its_memory():
    kv = pool(FullAttention(8, 8, 128, 128), block_size=16, blocks=40)
    assert kv.nbytes == 40 * 16 * 8 * 256 * 4 > 2**22
    keys = kv.layers[0].vectors[0].data
    assert keys.data_ptr() % 2**21 == 0 or not hasattr(mmap, "MADV_HUGEPAGE")
    kv.write_block(39, torch.full((kv.layout.block_bytes,), 7, dtype=torch.uint8))
    again = pool(FullAttention(8, 8, 128, 128), block_size=16, blocks=40)
    again.write_block(39, torch.zeros(kv.layout.block_bytes, dtype=torch.uint8))
    assert bool((kv.read_block(39) == 7).all())


def test_more_than_the_machine_has_is_refused_before_it_is_touched():
    available = available_memory()
    assert available is not None
    model = spec(FullAttention(8, 8, 128, 128))
    layout = KVLayout.of(model, "fp32", 16)
    blocks = 2 * available // layout.block_bytes
    with pytest.raises(
        KvhouseError, match=f"cannot allocate {blocks * layout.block_bytes:,} bytes"
    ):
        KVTensors(model, layout, PoolSize(blocks))


def test_what_it_cannot_hold_is_refused_by_name():
    with pytest.raises(KvhouseError, match=r"no tensors for cross attention$"):
        pool(FullAttention(4, 2, 8, 8), CrossAttention(4, 2, 8, 8), other_tokens=7)
    with pytest.raises(KvhouseError, match=r"no tensors for sparse indexer$"):
        pool(LatentAttention(4, 32, 16), Indexer(8, "float32"))
    with pytest.raises(KvhouseError, match=r"block size 3: with KV format int8 .* an even one"):
        pool(FullAttention(4, 1, 8, 5), kv_format="int8", block_size=3)
