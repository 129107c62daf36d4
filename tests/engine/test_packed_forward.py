"""A packed forward over scattered pages gives what the model gives for each request alone."""

from __future__ import annotations

import random

import pytest
import torch

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.adapter import ModelAdapter
from kvhouse.engine.kernels.reference import ReferenceKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.load import load_model
from kvhouse.engine.packed import pack
from kvhouse.layout import KVLayout, PoolSize

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


def nan_pool(loaded, layout: KVLayout, blocks: int) -> KVTensors:
    kv = KVTensors(loaded.spec, layout, PoolSize(blocks))
    for layer in kv.layers.values():
        for vectors in layer.vectors:
            vectors.data.fill_(torch.nan)
    return kv


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
    blocks = len(pages) + sum(needed.values())
    kv = nan_pool(loaded, KVLayout.of(loaded.spec, kv_format, BLOCK_SIZE), blocks)
    adapter = ModelAdapter(loaded.model, ReferenceKernel(kv), loaded.spec)
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
    kernel = ReferenceKernel(nan_pool(loaded, KVLayout.of(loaded.spec, "fp32", BLOCK_SIZE), 200))
    table = list(range(199, 49, -1))
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
