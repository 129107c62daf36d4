"""A packed forward over scattered pages gives what the model gives for each request alone."""

from __future__ import annotations

import random

import pytest
import torch

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.adapter import ModelAdapter
from kvhouse.engine.kernels.gather import GatherKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.load import load_model
from kvhouse.engine.packed import pack
from kvhouse.layout import KVLayout

BLOCK_SIZE = 4
LENGTHS = (1, 5, 4, 33, 18, 90)


def steps(rng: random.Random, tables: dict[int, list[int]]):
    """Plans that take every request to its length in chunks of mixed sizes, 1 among them."""
    computed = dict.fromkeys(tables, 0)
    index = 0
    while any(computed[request] < LENGTHS[request] for request in tables):
        rows = []
        for request, table in tables.items():
            left = LENGTHS[request] - computed[request]
            count = min(left, rng.choice((0, 1, 1, 2, 7, 40)))
            if not count:
                continue
            end = computed[request] + count
            seen = tuple(table[: -(-end // BLOCK_SIZE)])
            rows.append(Row(request, computed[request], count, rng.random() < 0.8, (seen,)))
            computed[request] = end
        if rows:
            yield StepPlan(index, tuple(rows), (), (), ())
            index += 1


def packed_against_alone(directory, kv_format: str, seed: int) -> float:
    """The largest error of any sampled row, relative to the largest logit of that row."""
    rng = random.Random(seed)
    loaded = load_model(directory)
    tokens = {
        r: [rng.randrange(loaded.spec.vocab_size) for _ in range(n)] for r, n in enumerate(LENGTHS)
    }
    with torch.inference_mode():
        alone = {r: loaded.model(torch.tensor([ids])).logits[0] for r, ids in tokens.items()}
    needed = {r: -(-n // BLOCK_SIZE) for r, n in enumerate(LENGTHS)}
    pages = list(range(sum(needed.values()) + 10))
    rng.shuffle(pages)
    tables = {r: [pages.pop() for _ in range(count)] for r, count in needed.items()}
    kv = KVTensors(
        KVLayout.of(loaded.spec, kv_format, BLOCK_SIZE), len(pages) + sum(needed.values())
    )
    for layer in range(kv.layers):
        for tensor in kv.slots(layer):
            tensor.fill_(torch.nan)
    kernel = GatherKernel(kv, max(LENGTHS), loaded.model.dtype)
    adapter = ModelAdapter(loaded.model, kernel, loaded.spec)
    worst = 0.0
    for plan in steps(rng, tables):
        logits = adapter.forward(pack(plan, tokens))
        sampling = [row for row in plan.rows if row.samples]
        assert logits.shape == (len(sampling), loaded.spec.vocab_size)
        for row, got in zip(sampling, logits, strict=True):
            want = alone[row.request][row.first + row.count - 1]
            assert not got.isnan().any()
            worst = max(worst, float((got - want).abs().max() / want.abs().max()))
    return worst


def test_packed_equals_alone(tiny_directory, family):
    assert packed_against_alone(tiny_directory(family), "fp32", seed=1) < 1e-5


@pytest.mark.parametrize("seed", range(2, 8))
def test_packed_equals_alone_whatever_the_chunks(tiny_directory, seed):
    assert packed_against_alone(tiny_directory("llama-gqa"), "fp32", seed) < 1e-5


@pytest.mark.parametrize(("kv_format", "bound"), [("fp16", 1e-2), ("bf16", 6e-2)])
def test_narrow_formats_round_and_no_more(tiny_directory, kv_format, bound):
    error = packed_against_alone(tiny_directory("llama-gqa"), kv_format, seed=1)
    assert 1e-5 < error < bound


def test_attention_looks_at_everything_before_and_nothing_else(tiny_directory):
    """Each of a chunk's positions against a plain softmax, tile borders included."""
    loaded = load_model(tiny_directory("llama-gqa"))
    kv = KVTensors(KVLayout.of(loaded.spec, "fp32", BLOCK_SIZE), 200)
    for layer in range(kv.layers):
        for tensor in kv.slots(layer):
            tensor.fill_(torch.nan)
    table = list(range(199, 49, -1))
    kernel = GatherKernel(kv, 600, torch.float32)
    torch.manual_seed(0)
    q, k, v = torch.randn(600, 6, 8), torch.randn(600, 2, 8), torch.randn(600, 2, 8)
    got = []
    for first, count in ((0, 1), (1, 299), (300, 256), (556, 43), (599, 1)):
        end = first + count
        row = Row(0, first, count, True, (tuple(table[: -(-end // BLOCK_SIZE)]),))
        step = kernel.prepare(pack(StepPlan(0, (row,), (), (), ()), {0: [0] * 600}))
        span = slice(first, end)
        got.append(step.attend(1, q[span], k[span], v[span], 0.3))
    scores = torch.einsum("qkgd,nkd->kgqn", q.view(600, 2, 3, 8), k) * 0.3
    scores.masked_fill_(torch.ones(600, 600).triu(1).bool(), -torch.inf)
    want = torch.einsum("kgqn,nkd->qkgd", scores.softmax(-1), v).reshape(600, 6, 8)
    torch.testing.assert_close(torch.cat(got), want, rtol=1e-5, atol=1e-5)


def test_more_decoding_rows_than_the_scratch_holds(tiny_directory):
    """80 requests of up to 160 tokens, gathered in turns through a scratch that stays as it is."""
    loaded = load_model(tiny_directory("llama-gqa"))
    lengths = [1 + 2 * request for request in range(80)]
    random.Random(0).shuffle(lengths)
    kv = KVTensors(KVLayout.of(loaded.spec, "fp32", BLOCK_SIZE), 80 * 40)
    kernel = GatherKernel(kv, 160, torch.float32)
    assert sum(lengths) > kernel.scratch_slots
    scratch = [(buffer.data_ptr(), buffer.untyped_storage().nbytes()) for buffer in kernel.scratch]
    torch.manual_seed(0)
    keys, values = kv.slots(2)
    keys.fill_(torch.nan)
    values.fill_(torch.nan)
    rows, want = [], []
    q, k, v = torch.randn(80, 6, 8), torch.randn(80, 2, 8), torch.randn(80, 2, 8)
    for request, length in enumerate(lengths):
        table = tuple(range(request * 40, request * 40 + -(-length // BLOCK_SIZE)))
        rows.append(Row(request, length - 1, 1, True, (table,)))
        span = slice(request * 40 * BLOCK_SIZE, request * 40 * BLOCK_SIZE + length)
        keys[span], values[span] = torch.randn(2, length, 2, 8)
        all_keys = torch.cat((keys[span][:-1], k[request : request + 1]))
        all_values = torch.cat((values[span][:-1], v[request : request + 1]))
        weights = torch.einsum("kgd,nkd->kgn", q[request].view(2, 3, 8), all_keys).mul(0.3)
        want.append(torch.einsum("kgn,nkd->kgd", weights.softmax(-1), all_values).reshape(6, 8))
    tokens = {request: [0] * length for request, length in enumerate(lengths)}
    got = kernel.prepare(pack(StepPlan(0, tuple(rows), (), (), ()), tokens)).attend(2, q, k, v, 0.3)
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-5, atol=1e-5)
    assert scratch == [(b.data_ptr(), b.untyped_storage().nbytes()) for b in kernel.scratch]
