"""Every causal language model of transformers: the engine's answers are its own, or it is refused.

Requests come in chunks of all sizes, prefill beside decode, over pages in any order. Pages that
no request holds are full of NaN, those that fall out of a window's reach again.
"""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.kernels.reference import ReferenceKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import pack
from kvhouse.engine.sequential import make_adapter
from kvhouse.engine.support import capability
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.spec.hf_config import read_config

from .how_models_run import TABLE, tiny_configs

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS = tiny_configs()
RUNS = json.loads(TABLE.read_text(encoding="utf-8"))
#: Tokens on both sides of the windows and chunks, which are 8 long.
LENGTHS = (1, 5, 12, 29)
BLOCK_SIZE, BLOCKS = 4, 300


def of_kind(*kinds: str) -> list[str]:
    return [model_type for model_type, run in RUNS.items() if run["kind"] in kinds]


def config_of(model_type: str):
    return CONFIG_MAPPING[model_type](**copy.deepcopy(CONFIGS[model_type]))


def build(model_type: str):
    """The model; its weights are wide enough that what is attended to shows in the logits.

    States pass rounding on from token to token: with wider weights a model's own answers, token
    by token and all at once, differ by more than what is asked here.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(model_type), dtype=torch.float32).eval()
    wide = 0.1 if "recurrent states" in RUNS[model_type]["reason"] else 0.2
    for weight in model.parameters():
        weight.data.add_(torch.randn_like(weight) * (0.1 if weight.dim() > 2 else wide))
    return model


class Pages:
    """Block tables of every request, for each group of layers, over a pool of NaN."""

    def __init__(self, spec, rng: random.Random) -> None:
        self.layout = KVLayout.of(spec, "fp32", BLOCK_SIZE, dtype="float32")
        self.kv = KVTensors(spec, self.layout, PoolSize(BLOCKS, len(LENGTHS)))
        size = self.layout.block_bytes // 4
        self.nan = torch.full((size,), torch.nan).view(torch.uint8)
        for block in range(BLOCKS):
            self.kv.write_block(block, self.nan)
        self.kv.states.fill_(255)
        self.free = list(range(BLOCKS))
        rng.shuffle(self.free)
        groups = range(len(self.layout.groups))
        self.tables = {r: [[] for _ in groups] for r in range(len(LENGTHS))}
        self.starts = {r: [0 for _ in groups] for r in range(len(LENGTHS))}

    def row(self, request: int, first: int, count: int) -> Row:
        """A row, after giving back what is out of reach and taking what it needs."""
        for number, group in enumerate(self.layout.groups):
            table, starts = self.tables[request][number], self.starts[request]
            while starts[number] < group.reach.first(first) // group.block_size:
                self.kv.write_block(table[0], self.nan)
                self.free.insert(0, table.pop(0))
                starts[number] += 1
            while (starts[number] + len(table)) * group.block_size < first + count:
                table.append(self.free.pop())
        tables = tuple(map(tuple, self.tables[request]))
        return Row(request, first, count, True, tables, tuple(self.starts[request]), request)


def plans(pages: Pages, rng: random.Random):
    """Steps that take every request to its length."""
    computed = dict.fromkeys(range(len(LENGTHS)), 0)
    while computed != dict(enumerate(LENGTHS)):
        rows = []
        for request, length in enumerate(LENGTHS):
            count = min(length - computed[request], rng.choice((0, 1, 1, 2, 7, 11)))
            if count:
                rows.append(pages.row(request, computed[request], count))
                computed[request] += count
        if rows:
            yield StepPlan(0, tuple(rows), (), (), ())


def largest_error(model_type: str) -> float:
    """Of any sampled row, relative to the largest logit of that row."""
    rng = random.Random(model_type)
    spec = read_config({"model_type": model_type, **CONFIGS[model_type]}, "m", "here")
    model = build(model_type)
    tokens = {r: [rng.randrange(5, 60) for _ in range(n)] for r, n in enumerate(LENGTHS)}
    with torch.inference_mode():
        alone = {r: model(torch.tensor([ids])).logits[0] for r, ids in tokens.items()}
    pages = Pages(spec, rng)
    found = capability(config_of(model_type))
    adapter = make_adapter(model, ReferenceKernel(pages.kv), spec, found.way, found.continuation)
    worst = 0.0
    for plan in plans(pages, rng):
        logits = adapter.forward(pack(plan, tokens))
        for row, got in zip(plan.rows, logits, strict=True):
            want = alone[row.request][row.first + row.count - 1]
            assert not got.isnan().any()
            worst = max(worst, float((got - want).abs().max() / want.abs().max()))
    return worst


def test_the_table_names_every_architecture() -> None:
    assert set(RUNS) == set(CONFIGS) >= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert len(of_kind("packed")) >= 110
    assert len(of_kind("per_sequence")) >= 30
    assert all(run["reason"] for run in RUNS.values() if run["kind"] != "packed")


@pytest.mark.parametrize("document", ["models.md", "models.zh-CN.md"])
def test_the_docs_name_them_alike(document: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / document).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(packed|per_sequence|refused)` \| .* \| (.*) \|$", text, re.MULTILINE)
    told = [(name, kind) for kind, names in rows for name in re.findall(r"`([^`]+)`", names)]
    assert len(told) == len(dict(told))
    assert dict(told) == {model_type: run["kind"] for model_type, run in RUNS.items()}


@pytest.mark.parametrize("model_type", of_kind("packed", "per_sequence"))
def test_answers_are_the_models_own(model_type: str) -> None:
    assert largest_error(model_type) < 1e-5


@pytest.mark.parametrize("model_type", RUNS)
def test_the_gate_says_so(model_type: str) -> None:
    found = capability(config_of(model_type))
    assert {"kind": found.kind, "reason": found.reason} == RUNS[model_type]
