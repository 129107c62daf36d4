"""Tiny random models of every family, and SmolLM2 with transformers' own answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from kvhouse.engine import Engine, EngineConfig
from kvhouse.engine.load import LoadedModel, load_model
from kvhouse.engine.support import require_support
from kvhouse.spec.hf_config import read_config

VOCAB = 97

_COMMON = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZES = {
    **_COMMON,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
}
TINY = {
    "llama-mha": transformers.LlamaConfig(**_SIZES, num_key_value_heads=6),
    "llama-gqa": transformers.LlamaConfig(**_SIZES, num_key_value_heads=2),
    "llama-mqa": transformers.LlamaConfig(**_SIZES, num_key_value_heads=1),
    "llama-head-dim": transformers.LlamaConfig(**_SIZES, num_key_value_heads=2, head_dim=20),
    "llama-rope-3": transformers.LlamaConfig(
        **_SIZES,
        num_key_value_heads=2,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2": transformers.Qwen2Config(**_SIZES, num_key_value_heads=2, use_sliding_window=False),
    "qwen3": transformers.Qwen3Config(
        **_SIZES, num_key_value_heads=2, head_dim=12, use_sliding_window=False
    ),
    "mistral": transformers.MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=None),
    "mistral-wide-window": transformers.MistralConfig(
        **_SIZES, num_key_value_heads=2, sliding_window=4096
    ),
    "phi": transformers.PhiConfig(**_SIZES, num_key_value_heads=2),
    "phi-qk-norm": transformers.PhiConfig(**_SIZES, num_key_value_heads=6, qk_layernorm=True),
    "phi3": transformers.Phi3Config(**_SIZES, num_key_value_heads=2),
    "gpt2": transformers.GPT2Config(**_COMMON, n_embd=48, n_layer=3, n_head=6, n_positions=256),
    "gpt2-layer-scaled": transformers.GPT2Config(
        **_COMMON,
        n_embd=48,
        n_layer=3,
        n_head=6,
        n_positions=256,
        scale_attn_by_inverse_layer_idx=True,
    ),
    "opt": transformers.OPTConfig(
        **_COMMON,
        hidden_size=48,
        ffn_dim=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        max_position_embeddings=256,
        word_embed_proj_dim=48,
    ),
    "opt-projected": transformers.OPTConfig(
        **_COMMON,
        hidden_size=48,
        ffn_dim=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        max_position_embeddings=256,
        word_embed_proj_dim=24,
        do_layer_norm_before=False,
    ),
}

#: A tiny config of every architecture of transformers.
_TINY_CONFIGS = Path(__file__).parents[1] / "oracle" / "tiny_configs.jsonl"

#: 32 prompts from a few tokens to a few hundred.
STORY = (
    "The lighthouse keeper climbed the stairs every evening, counted the ships on the horizon and "
    "wrote their names into a book that nobody had asked for. One night a ship came that was in "
    "no register. It carried no flag, and its lanterns burned green. "
)
QUESTIONS = (
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "Once upon a time",
    "Translate to German: good morning.",
    "List three primary colours:",
    "The opposite of hot is",
    "2 + 2 =",
)
PROMPTS = tuple(
    STORY * (5 if index % 16 == 3 else 1 if index % 4 == 2 else 0)
    + question
    + " and then" * (index // 8)
    for index, question in enumerate(QUESTIONS * 4)
)
NEW_TOKENS = 16


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Most tensors here are small; threads that wait for each other are slow on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(params=sorted(TINY))
def family(request) -> str:
    """The name of each tiny model in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory) -> Callable[[str], Path]:
    """Directories of tiny models; their weights are wide enough that no two tokens tie."""

    def build(name: str) -> Path:
        directory = tmp_path_factory.getbasetemp() / f"tiny-{name}"
        if not directory.exists():
            torch.manual_seed(sorted(TINY).index(name))
            model = transformers.AutoModelForCausalLM.from_config(TINY[name])
            for parameter in model.parameters():
                parameter.data.add_(torch.randn_like(parameter) * 0.2)
            model.save_pretrained(directory)
        return directory

    return build


@pytest.fixture
def tiny(tiny_directory) -> Callable[..., Engine]:
    """Engines on a tiny model, with a pool counted in blocks and every invariant checked."""

    def build(name: str = "llama-gqa", *, blocks: int = 64, **config) -> Engine:
        loaded = load_model(tiny_directory(name))
        block_size = config.setdefault("block_size", 4)
        heads = 2 * 3 * 2 * 8  # K and V, layers, KV heads, head_dim of llama-gqa
        memory = blocks * block_size * heads * 4
        return Engine(loaded, EngineConfig(kv_memory=memory, checked=True, **config))

    return build


@pytest.fixture(scope="session")
def architecture() -> Callable[..., LoadedModel]:
    """A fresh tiny random model of any architecture, with weights that make every layer count."""
    rows = [json.loads(line) for line in _TINY_CONFIGS.read_text().splitlines()]

    def build(model_type: str, variant: str | None = None, **changes) -> LoadedModel:
        (row,) = (
            row for row in rows if row["model_type"] == model_type and row.get("variant") == variant
        )
        config = {**row["config"], **changes}
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.CONFIG_MAPPING[model_type](**config), dtype=torch.float32
        )
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
        spec = read_config({"model_type": model_type, **config}, model_type, "its config")
        found = require_support(model.config)
        return LoadedModel(spec, model.eval(), found.way, None, found.continuation)

    return build


@dataclass(frozen=True)
class Reference:
    """SmolLM2, and what transformers' own ``generate`` answers to each prompt."""

    loaded: LoadedModel
    prompts: tuple[str, ...]
    new_tokens: int
    answers: list[list[int]]


@pytest.fixture(scope="session")
def smollm2_model() -> LoadedModel:
    """SmolLM2 alone; without the package that ships it, this fails."""
    return load_model("smollm2")


@pytest.fixture(scope="session")
def smollm2(smollm2_model) -> Reference:
    loaded, tokenizer = smollm2_model, smollm2_model.tokenizer
    loaded.model.set_attn_implementation("sdpa")  # an engine of another test may have had it
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS]
    answers: list[list[int]] = [[] for _ in PROMPTS]
    # Prompts of similar length go together, padded on the left; that is much faster than one
    # by one.
    for low, high in ((0, 30), (30, 100), (100, 1000)):
        batch = [number for number, length in enumerate(lengths) if low <= length < high]
        inputs = tokenizer(
            [PROMPTS[number] for number in batch],
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        output = loaded.model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
        for number, row in zip(batch, output[:, inputs["input_ids"].shape[1] :], strict=True):
            answers[number] = _up_to_eos(row.tolist(), loaded.eos_token_ids)
    return Reference(loaded, PROMPTS, NEW_TOKENS, answers)


def _up_to_eos(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """Cut off the padding that follows a row's end token."""
    ends = [position for position, token in enumerate(tokens) if token in eos]
    return tokens[: ends[0] + 1] if ends else tokens
