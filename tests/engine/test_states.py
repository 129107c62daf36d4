"""What lies in a slot: the bytes of the spec, as transformers' own cache has them."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from kvhouse.core.step import Row
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.states import StateSlots
from kvhouse.errors import UnsupportedModel
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.spec import FullAttention, ModelSpec
from kvhouse.spec.layers import Combined, State
from kvhouse.spec.tensors import Convolution, Tensor

#: Layers with 3 · 2 + 4 · 2 elements, one of them beside attention: 2 · (24 + 16) bytes.
STATE = State((Convolution(3, 3), Tensor(8, "bfloat16")))
LAYERS = (STATE, FullAttention(1, 1, 4, 4), Combined((FullAttention(1, 1, 4, 4), STATE)))


def held(columns: int = 3) -> dict[int, list[torch.Tensor]]:
    """States as a model would hold them, all different."""
    numbers = iter(range(1, 1000))
    return {
        layer: [
            torch.tensor([next(numbers) for _ in range(3 * columns)]).view(1, 3, columns).float(),
            torch.tensor([next(numbers) for _ in range(8)]).view(1, 2, 4).bfloat16(),
        ]
        for layer in (0, 2)
    }


def slots(sample=None, layers=LAYERS, dtype="float32") -> StateSlots:
    spec = ModelSpec("test", "TestForCausalLM", layers, 64, 100, 128, 0, 0, "bfloat16")
    layout = KVLayout.of(spec, "fp32", 4, dtype=dtype)
    kv = KVTensors(spec, layout, PoolSize(1, 3))
    kv.states.fill_(255)
    return StateSlots(kv, spec, held() if sample is None else sample)


def row(first: int, count: int = 1, request: int = 7, slot: int = 1) -> Row:
    return Row(request, first, count, True, (), (), slot)


def equal(one, other) -> bool:
    return all(
        torch.equal(a, b) for layer in one for a, b in zip(one[layer], other[layer], strict=True)
    )


def test_what_is_written_is_read_but_for_the_column_that_nobody_needs():
    kept = slots()
    kept.write(row(0, 5), held())
    got = kept.read(row(5))
    want = held()
    for layer in want:
        want[layer][0][..., 0] = 0
    assert got is not None
    assert equal(got, want)
    assert [tensor.dtype for tensor in got[0]] == [torch.float32, torch.bfloat16]


def test_a_first_row_begins_from_nothing_and_other_slots_are_not_touched():
    kept = slots()
    kept.write(row(0, slot=1), held())
    assert kept.read(row(0, slot=1)) is None
    assert (kept.bytes[[0, 2]] == 255).all()


def test_bytes_lie_one_after_the_other_in_the_order_of_the_layers():
    kept = slots(held(2))
    kept.write(row(0), held(2))
    by_hand = b"".join(
        tensor.contiguous().view(torch.uint8).numpy().tobytes()
        for layer in (0, 2)
        for tensor in held(2)[layer]
    )
    assert kept.bytes[1].numpy().tobytes() == by_hand
    assert len(by_hand) == 2 * (24 + 16)


def test_a_row_that_comes_again_finds_the_state_before_it():
    kept, first, second = slots(held(2)), held(2), held(2)
    for tensor in (tensor for tensors in second.values() for tensor in tensors):
        tensor += 0.5
    kept.begin([row(0, 4)])
    kept.write(row(0, 4), first)
    for count in (3, 2):  # interrupted twice, before the step was over
        kept.begin([row(4, count)])
        assert equal(kept.read(row(4, count)), first)
        kept.write(row(4, count), second)
    kept.begin([row(6)])
    assert equal(kept.read(row(6)), second)


def test_another_requests_row_in_the_slot_is_no_second_try():
    kept, second = slots(held(2)), held(2)
    second[0][0] += 1
    kept.write(row(0, 4, request=7), held(2))
    kept.write(row(4, 1, request=7), held(2))
    kept.begin([row(0, 4, request=8)])
    kept.write(row(0, 4, request=8), second)
    kept.begin([row(4, 1, request=8)])
    assert equal(kept.read(row(4, 1, request=8)), second)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({0: held()[0]}, "layer 2 keeps other states than its description says"),
        ({**held(), 2: held()[2][:1]}, "layer 2 keeps other states"),
        ({**held(), 0: [*held()[0], torch.zeros(1, 1)]}, "layer 0 keeps other states"),
        ({**held(), 0: [torch.zeros(1, 4, 3), held()[0][1]]}, "layer 0 keeps other states"),
        ({**held(), 0: [held()[0][0], torch.zeros(1, 2, 4)]}, "layer 0 keeps a state in float32"),
        ({**held(), 1: [torch.zeros(1, 4)]}, "layer 1 keeps other states"),
    ],
)
def test_states_that_are_not_the_specs_are_refused(sample, message):
    with pytest.raises(UnsupportedModel, match=message):
        slots(sample)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["jamba", "qwen3_next", "falcon_h1", "lfm2", "nemotron_h"])
def test_a_slot_holds_what_transformers_own_cache_holds(architecture, model_type):
    from kvhouse.engine.kernels.reference import ReferenceKernel
    from kvhouse.engine.packed import PackedRow, PackedStep
    from kvhouse.engine.sequential import SequentialAdapter

    loaded = architecture(model_type)
    ids = torch.randint(5, 60, (1, 9), generator=torch.Generator().manual_seed(3))
    cache = DynamicCache(config=loaded.model.config)
    with torch.inference_mode():
        loaded.model(ids, cache=cache, use_cache=True)
    want = []
    for layer, described in zip(cache.layers, loaded.spec.layers, strict=True):
        for kept in (tensor for part in described.parts for tensor in part.state):
            if isinstance(kept, Convolution):
                want.append(layer.conv_states[0][..., 1 - kept.kernel :].flatten())
            else:
                want.append(layer.recurrent_states[0].flatten())
    layout = KVLayout.of(loaded.spec, "fp32", 16, dtype="float32")
    kv = KVTensors(loaded.spec, layout, PoolSize(len(layout.groups), 2))
    adapter = SequentialAdapter(loaded.model, ReferenceKernel(kv), loaded.spec, loaded.continuation)
    tables = tuple((block,) for block in range(len(layout.groups)))
    one = Row(0, 0, 9, True, tables, (0,) * len(tables), 1)
    positions = torch.arange(9)[None]
    adapter.forward(PackedStep(ids, positions, torch.tensor([8]), (PackedRow(one, 0),)))
    got = kv.states[1].view(torch.float32)
    torch.testing.assert_close(got, torch.cat(want), rtol=1e-5, atol=1e-5)
