"""Models with recurrent states, row by row: what each row gives is what the whole text gives."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from transformers import CONFIG_MAPPING

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine.kernels.choose import make_kernel
from kvhouse.engine.kernels.cpu.kernel import NumbaKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import pack
from kvhouse.engine.sequential import Continuation, SequentialAdapter
from kvhouse.engine.support import capability
from kvhouse.errors import UnsupportedModel
from kvhouse.layout import KVLayout, PoolSize

pytestmark = pytest.mark.filterwarnings("ignore")

BLOCK_SIZE = 4
LENGTHS = (1, 5, 4, 33, 18, 50)
SLOTS = 9
#: Tokens that mean nothing special in the tiny vocabularies.
TOKENS = range(5, 60)

#: Those that go on from a state for one token at a time; of some the class's own scan over
#: several tokens begins from nothing, of another its convolution.
ONE_BY_ONE = ("falcon_mamba", "jamba", "mamba", "recurrent_gemma", "zamba")
#: Those whose attention adds a bias for each position or, with its window, keeps what it hides.
OWN_ATTENTION = ("inkling2_loop_text", "inkling2_text", "inkling_text", "minimax")
#: RWKV's class mixes the rows of a batch of single tokens.
ALONE = ("rwkv",)
IN_CHUNKS = (
    "bailing_hybrid",
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
    "lara_mini",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "rwkv",
    "xlstm",
    "zamba2",
    "zaya",
)
ALL = (*ONE_BY_ONE, *OWN_ATTENTION, *IN_CHUNKS)


class Served:
    """A model on a pool full of NaN, with tables and slots for a few requests."""

    def __init__(self, loaded, seed: int = 1, lengths=LENGTHS) -> None:
        rng = random.Random(seed)
        self.spec, self.lengths = loaded.spec, lengths
        self.tokens = {r: rng.choices(TOKENS, k=count) for r, count in enumerate(lengths)}
        self.layout = KVLayout.of(loaded.spec, "fp32", BLOCK_SIZE, dtype="float32")
        needed = [-(-count // BLOCK_SIZE) for count in lengths]
        pages = list(range(len(self.layout.groups) * sum(needed) + 10))
        self.kv = KVTensors(loaded.spec, self.layout, PoolSize(len(pages), SLOTS))
        for layer in self.kv.layers.values():
            for vectors in layer.vectors:
                vectors.data.fill_(torch.nan)
        self.kv.states.fill_(255)  # NaN in every float dtype
        rng.shuffle(pages)
        self.slots = rng.sample(range(SLOTS), len(lengths))
        self.tables = [
            [[pages.pop() for _ in range(count)] for _ in self.layout.groups] for count in needed
        ]
        with torch.inference_mode():
            self.whole = {
                request: loaded.model(torch.tensor([ids]), use_cache=False).logits[0]
                for request, ids in self.tokens.items()
            }
        kernel = make_kernel(self.kv)
        self.adapter = SequentialAdapter(loaded.model, kernel, loaded.spec, loaded.continuation)

    def row(self, request: int, first: int, count: int, samples: bool = True) -> Row:
        blocks = -(-(first + count) // BLOCK_SIZE)
        tables = tuple(tuple(table[:blocks]) for table in self.tables[request])
        starts = (0,) * len(tables)
        return Row(request, first, count, samples, tables, starts, self.slots[request])

    def run(self, *rows: Row) -> float:
        """The largest error of a row that samples, relative to its largest logit."""
        logits = self.adapter.forward(pack(StepPlan(0, rows, (), (), ()), self.tokens))
        sampling = [row for row in rows if row.samples]
        assert logits.shape == (len(sampling), self.spec.vocab_size)
        errors = [0.0]
        for row, got in zip(sampling, logits, strict=True):
            want = self.whole[row.request][row.first + row.count - 1]
            assert not got.isnan().any()
            errors.append(float((got - want).abs().max() / want.abs().max()))
        return max(errors)

    def run_all(self, seed: int = 1, restarts: int = 2) -> float:
        """Chunks of mixed sizes, single tokens among them; some requests begin again midway."""
        rng = random.Random(seed)
        done = dict.fromkeys(self.tokens, 0)
        worst = 0.0
        while any(done[request] < count for request, count in enumerate(self.lengths)):
            rows = []
            for request, count in enumerate(self.lengths):
                took = min(count - done[request], rng.choice((0, 1, 1, 2, 7, 20)))
                if took:
                    rows.append(self.row(request, done[request], took, rng.random() < 0.8))
                    done[request] += took
            if rows:
                worst = max(worst, self.run(*rows))
            if restarts and done[3] > 10:
                # Preempted: it resumes from nothing, in another slot.
                restarts -= 1
                done[3] = 0
                (self.slots[3],) = rng.sample(sorted(set(range(SLOTS)) - set(self.slots)), 1)
        return worst


@pytest.mark.parametrize("model_type", ALL)
def test_row_by_row_equals_the_whole_text(architecture, model_type):
    loaded = architecture(model_type)
    assert loaded.kind == "per_sequence"
    own_attention = model_type in OWN_ATTENTION
    together = not own_attention and model_type not in ALONE
    want = Continuation(own_attention, model_type in ONE_BY_ONE, together)
    assert loaded.continuation == want
    assert Served(loaded).run_all() < 1e-5


@pytest.mark.parametrize(
    ("model_type", "variant"),
    [
        ("inkling_text", "local_ids"),
        ("kimi_linear", "checkpoint_form"),
        ("nemotron_h", "pattern"),
        ("zamba2", "class_pattern"),
    ],
)
def test_other_patterns_of_layers(architecture, model_type, variant):
    assert Served(architecture(model_type, variant)).run_all() < 1e-5


#: Classes whose config by default is no hybrid, or none at all.
WITHOUT_DEFAULTS = ("lfm2", "lfm2_moe")


@pytest.mark.parametrize("model_type", sorted(set(ALL) - set(WITHOUT_DEFAULTS)))
def test_a_model_of_full_size_is_tried_out_made_narrow(model_type):
    """The class's own sizes, which are those of a published model."""
    found = capability(CONFIG_MAPPING[model_type]())
    assert found.kind == "per_sequence", found.reason
    assert found.continuation is not None
    assert found.continuation.one_by_one == (model_type in ONE_BY_ONE)
    assert ("one token at a time" in found.reason) == (model_type in ONE_BY_ONE)
    assert found.reason.startswith("its layers keep recurrent states")


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("cpmant", "its attention cannot be replaced"), ("qwen4_exp_text", "no tensors for sparse")],
)
def test_what_cannot_be_run_is_refused_with_the_reason(architecture, model_type, reason):
    with pytest.raises(UnsupportedModel, match=reason):
        architecture(model_type)


@pytest.mark.parametrize(
    ("model_type", "passes"), [("zamba2", 2), ("jamba", 4), ("inkling_text", 4), ("rwkv", 4)]
)
def test_requests_that_decode_share_a_pass_where_they_can(architecture, model_type, passes):
    served = Served(architecture(model_type))
    # A batch reaches the compiled kernel too, as a pack.
    assert isinstance(served.adapter.kernel, NumbaKernel) == (model_type in ("jamba", "rwkv"))
    served.run(served.row(2, 0, 1), served.row(3, 0, 9), served.row(4, 0, 6), served.row(5, 0, 3))
    counted = []
    served.adapter.model.register_forward_hook(lambda *_: counted.append(1))
    rows = served.row(3, 9, 1), served.row(4, 6, 1, samples=False), served.row(5, 3, 1)
    assert served.run(*rows, served.row(2, 1, 3)) < 1e-5
    assert len(counted) == passes


@pytest.mark.parametrize("document", ["models.md", "models.zh-CN.md"])
def test_the_documentation_names_them_all(document):
    text = (Path(__file__).parents[2] / "docs" / document).read_text(encoding="utf-8")
    section = text.split("\n## ")[-2].splitlines()
    named = [set(re.findall(r"`([a-z]\w*)`", row)) for row in section if row.startswith("|")][2:]
    assert named == [set(IN_CHUNKS), set(OWN_ATTENTION), set(ONE_BY_ONE)]


@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("model_type", ["jamba", "qwen3_next"])
def test_whatever_the_chunks(architecture, model_type, seed):
    assert Served(architecture(model_type), seed).run_all(seed) < 1e-5


def test_minimax_without_a_window_attends_over_pages(architecture):
    loaded = architecture("minimax", sliding_window=None)
    assert loaded.continuation == Continuation(together=True)
    assert Served(loaded).run_all() < 1e-5


@pytest.mark.parametrize(
    "model_type", ["inkling_text", "jamba", "qwen3_next", "recurrent_gemma", "rwkv"]
)
def test_an_interrupted_step_is_as_if_it_had_not_been(architecture, model_type, monkeypatch):
    """The rows that were computed before the interruption do not absorb their tokens twice."""
    served = Served(architecture(model_type))
    assert served.run(served.row(3, 0, 9), served.row(4, 0, 6), served.row(5, 0, 3)) < 1e-5
    go_on = SequentialAdapter._go_on

    def interrupted(self, step, *rest):
        if step.rows[0].row.request == 4:
            raise KeyboardInterrupt
        return go_on(self, step, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(SequentialAdapter, "_go_on", interrupted)
        with pytest.raises(KeyboardInterrupt):
            served.run(served.row(3, 9, 4), served.row(4, 6, 2), served.row(5, 3, 2))
    # Request 3 does not come again at once, and then with another count.
    assert served.run(served.row(4, 6, 1), served.row(5, 3, 2)) < 1e-5
    assert served.run(served.row(3, 9, 2), served.row(4, 7, 2)) < 1e-5
    assert served.run(served.row(3, 11, 2), served.row(5, 5, 2)) < 1e-5
