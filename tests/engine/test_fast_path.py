"""The fast path computes what transformers computes, and leaves alone what it does not know."""

from __future__ import annotations

import itertools
import random

import llvmlite.binding
import pytest
import torch
import transformers
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama import modeling_llama

from kvhouse.engine import Engine, EngineConfig, SamplingParams
from kvhouse.engine.fast.norms import RMSNorm, understand_norm
from kvhouse.engine.load import load_model
from kvhouse.engine.watch import StepWatch

pytestmark = pytest.mark.filterwarnings("ignore")

#: Architectures whose own code has no part that the fast path does not know.
UNDERSTOOD = """
aria_text arcee cwm dots1 exaone exaone4 exaone_moe gemma gemma2 gemma3_text granite hy_v3
internlm3 iquestcoder jais2 llama ministral mistral nemotron olmo olmo2 olmo3 phi3 qwen2 qwen3
seed_oss smollm3 solar_open starcoder2 vaultgemma
"""
#: Sizes that compiled code takes.
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
}
COMPILED = (
    "gemma2",
    "gemma3_text",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
)
#: Where the processor has what compiled matrix products take.
HAS_COMPILED = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))
EVERY = SamplingParams(ignore_eos=True, logprobs=100)


def ids(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, 60), k=count)


def answers(loaded, *, fast: bool, kernel: str = "auto", kv_format: str = "fp32"):
    """The engine's, with all log-probabilities, in chunks and beside each other."""
    config = EngineConfig(
        2**22, kv_format, kernel=kernel, fast_path=fast, block_size=16, token_budget=24
    )
    engine = Engine(loaded, config)
    return engine, engine.generate([ids(40, 1), ids(3, 2), ids(17, 3)], 6, EVERY)


def furthest(got, wanted) -> float:
    """The largest difference of a log-probability before the texts part."""
    worst = 0.0
    for one, other in zip(got, wanted, strict=True):
        for place, (a, b) in enumerate(zip(one.logprobs, other.logprobs, strict=True)):
            other_top = dict(b.top)
            worst = max(worst, *(abs(value - other_top[token]) for token, value in a.top))
            if one.token_ids[place] != other.token_ids[place]:
                break
    return worst


@pytest.mark.parametrize("model_type", UNDERSTOOD.split())
def test_float32_is_that_of_transformers(architecture, model_type):
    loaded = architecture(model_type)
    assert loaded.fast
    engine, got = answers(loaded, fast=True, kernel="reference")
    assert engine.paths.fast == len(loaded.spec.layers) > 0, engine.paths.line()
    plain, wanted = answers(loaded, fast=False, kernel="reference")
    assert plain.paths.reason == "the fast path is off"
    assert furthest(got, wanted) < 2e-4
    assert [one.token_ids for one in got] == [one.token_ids for one in wanted]


def wide(architecture, model_type):
    """A tiny model whose sizes compiled code takes, windows of 8 tokens among them."""
    own = transformers.CONFIG_MAPPING[model_type]()
    changes = dict(WIDE)
    if getattr(own, "head_dim", None) is not None:
        changes["head_dim"] = 32
    if getattr(own, "layer_types", None) is not None:
        kinds = sorted(set(own.layer_types))
        changes["layer_types"] = [kinds[number % len(kinds)] for number in range(4)]
    return architecture(model_type, **changes)


@pytest.mark.parametrize("model_type", COMPILED)
def test_compiled_float32_is_that_of_transformers(architecture, model_type):
    loaded = wide(architecture, model_type)
    engine, got = answers(loaded, fast=True)
    assert engine.paths.compiled == HAS_COMPILED, engine.paths.line()
    _, wanted = answers(loaded, fast=False, kernel="reference")
    assert furthest(got, wanted) < 2e-4
    assert [one.token_ids for one in got] == [one.token_ids for one in wanted]


@pytest.mark.parametrize("kv_format", ["int8", "int4"])
def test_compiled_code_reads_what_it_writes_in_every_format(architecture, kv_format):
    loaded = wide(architecture, "llama")
    engine, got = answers(loaded, fast=True, kv_format=kv_format)
    assert engine.paths.compiled == HAS_COMPILED, engine.paths.line()
    _, wanted = answers(loaded, fast=False, kv_format=kv_format)
    # A rounding before may send an element to the neighbouring level.
    assert furthest(got, wanted) < 0.1


@pytest.mark.parametrize("model", ["smollm2", "gemma-3-270m"])
def test_bfloat16_differs_by_its_rounding(model):
    """From transformers in bfloat16 no further than twice what that differs from float32."""
    logits = {}
    for dtype in ("float32", "bfloat16"):
        loaded = load_model(model, dtype)
        prompt = loaded.tokenizer("The lighthouse keeper climbed the stairs and")["input_ids"]
        with torch.inference_mode():
            own = loaded.model(torch.tensor([prompt])).logits[0, -1].float()
        logits[dtype] = own.log_softmax(-1)
    config = EngineConfig(2**26, "bf16", max_length=64)
    engine = Engine(loaded, config)
    assert engine.paths.fast == len(loaded.spec.layers), engine.paths.line()
    (answer,) = engine.generate([prompt], 1, EVERY)
    rounding = (logits["bfloat16"] - logits["float32"]).abs()
    for token, value in answer.logprobs[0].top:
        assert abs(value - float(logits["float32"][token])) < 2 * float(rounding.max())


def test_a_clamp_that_no_trial_meets_is_not_understood(architecture, monkeypatch):
    loaded = architecture("llama")
    original = modeling_llama.LlamaMLP.forward

    def forward(self, x):
        return original(self, x).clamp(-1e9, 1e9)

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", forward)
    engine, got = answers(loaded, fast=True, kernel="reference")
    # Its MLP is called as it is; everything else is understood.
    assert {type(block.mlp).__name__ for block, _ in engine.executor.adapter.blocks} == {
        "OwnModule"
    }
    attend = modeling_llama.LlamaAttention.forward

    def clamped(self, hidden_states, *args, **kwargs):
        return attend(self, hidden_states.clamp(-1e9, 1e9), *args, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", clamped)
    engine, wanted = answers(loaded, fast=True, kernel="reference")
    assert engine.paths.line() == "unchanged: block 0: its attention uses clamp"
    assert [one.token_ids for one in got] == [one.token_ids for one in wanted]


def test_a_block_that_computes_something_else_is_left_alone(architecture, monkeypatch):
    """The same names, and other pairs of elements are turned."""
    loaded = architecture("llama")

    def rotate_half(x):
        return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)

    monkeypatch.setattr(modeling_llama, "rotate_half", rotate_half)
    engine, got = answers(loaded, fast=True, kernel="reference")
    assert "block 0: it computes something else than the original" in engine.paths.reason
    assert (engine.paths.fast, engine.paths.to_dict()["fast"]) == (0, 0)
    _, wanted = answers(loaded, fast=False, kernel="reference")
    assert furthest(got, wanted) == 0


def test_weights_are_the_models_own(architecture):
    loaded = wide(architecture, "llama")
    own = {weight.data_ptr(): weight.shape for weight in loaded.model.parameters()}
    engine, _ = answers(loaded, fast=True, kernel="reference")
    for block, _ in engine.executor.adapter.blocks:
        weights = (*block.attention.qkv, block.attention.out, *block.mlp.gate_up, block.mlp.down)
        assert [own[weight.data_ptr()] for weight, _ in weights] == [w.shape for w, _ in weights]
    assert len(weights) == 7


@pytest.mark.parametrize("kind", [modeling_llama.LlamaRMSNorm, Gemma3RMSNorm])
def test_norms_are_told_apart(kind):
    module = kind(32, 1e-5)
    module.weight.data.normal_()
    module.weight.data[0] = 300
    found = understand_norm(module)
    assert isinstance(found, RMSNorm)
    sample = torch.randn(5, 32) * 1e-3
    assert torch.allclose(found(sample), module(sample), rtol=1e-5, atol=1e-9)
    narrow = module.to(torch.bfloat16)
    assert understand_norm(narrow).weight[0] == narrow.weight[0].float() + (kind is Gemma3RMSNorm)
    other = torch.nn.LayerNorm(32)
    assert understand_norm(other) is other


def test_a_watched_program_computes_the_same_in_parts(architecture):
    """Writing and attention of each layer are told apart, by a clock that counts its readings."""
    loaded = wide(architecture, "llama")
    engine, wanted = answers(loaded, fast=True)
    watch = StepWatch(itertools.count().__next__)
    engine.executor.watch = watch
    requests = [engine.submit(ids(*prompt), 6, EVERY) for prompt in ((40, 1), (3, 2), (17, 3))]
    got = {}
    while engine.has_work:
        with watch.step():
            got |= {completion.request: completion for completion in engine.step().completions}
    assert [got[request].token_ids for request in requests] == [one.token_ids for one in wanted]
    assert all(step.parts["kv_writes"] == len(loaded.spec.layers) for step in watch.steps)
    assert all(step.parts["attention"] >= len(loaded.spec.layers) for step in watch.steps)
