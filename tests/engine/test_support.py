"""The gate: how a model runs, found by trying a narrow one of its class."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from kvhouse.engine import Engine, EngineConfig, SamplingParams
from kvhouse.engine.load import load_model
from kvhouse.engine.narrow import narrow
from kvhouse.engine.probe import Trial, random_model
from kvhouse.engine.support import capability, check
from kvhouse.errors import KvhouseError
from kvhouse.spec import SlidingAttention
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.reach import Reach

from .how_models_run import tiny_configs

pytestmark = pytest.mark.filterwarnings("ignore")

CONFIGS = tiny_configs()
PROMPT = [7, 30, 11, 52, 8, 41, 19, 33, 27, 5, 44, 13, 58, 21]


def tiny(model_type: str, **changes: object):
    return CONFIG_MAPPING[model_type](**{**copy.deepcopy(CONFIGS[model_type]), **changes})


@pytest.mark.parametrize(
    ("name", "kind", "max_length", "why"),
    [
        ("smollm2", "packed", None, ""),
        ("llama-3.1-405b", "packed", None, ""),
        ("gemma-3-27b", "packed", None, ""),
        ("gemma-4-26b-a4b", "packed", None, ""),
        ("gpt-oss-120b", "packed", None, ""),
        ("llama-4-maverick", "packed", None, ""),
        ("deepseek-v3", "packed", None, ""),
        ("deepseek-v3.2", "packed", 2048, "at most 2,048 tokens: beyond them an indexer selects"),
        ("glm-5", "packed", 2048, "at most 2,048 tokens: beyond them an indexer selects"),
        ("qwen3-next-80b-a3b", "per_sequence", None, "its layers keep recurrent states"),
        ("falcon-7b", "per_sequence", None, "its attention cannot be replaced"),
        ("deepseek-v4-flash", "refused", None, "the engine has no tensors for compressed"),
        ("minimax-m3", "refused", None, "transformers has no class for model type 'minimax_m3'"),
        ("qwen3-vl-2b", "refused", None, "no causal language model of its class"),
    ],
)
def test_published_models(name: str, kind: str, max_length: int | None, why: str) -> None:
    found = check(name)
    assert (found.kind, found.max_length) == (kind, max_length)
    assert why in found.reason
    assert bool(why) == bool(found.reason)


def test_a_config_file_and_its_directory_are_checked(tmp_path) -> None:
    config = {"model_type": "mistral", **CONFIGS["mistral"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert check(str(tmp_path)).kind == check(str(tmp_path / "config.json")).kind == "packed"


def test_what_is_not_there_is_no_refusal() -> None:
    with pytest.raises(KvhouseError, match="did you mean llama-2-7b"):
        check("lama-2-7b")


def trial(model_type: str, **changes: object) -> tuple[Trial, Trial]:
    """A trial with the right spec, and one whose windows are one token wider."""
    config = tiny(model_type, **changes)
    spec = read_config({"model_type": model_type, **config.to_dict()}, "m", "here")
    wider = tuple(
        replace(layer, window=layer.window + 1) if isinstance(layer, SlidingAttention) else layer
        for layer in spec.layers
    )
    model = random_model(config)
    return Trial(model, spec), Trial(model, replace(spec, layers=wider))


@pytest.mark.parametrize("model_type", ["mistral", "gemma3_text", "gpt_oss"])
def test_a_window_one_token_too_wide_shows(model_type: str) -> None:
    right, wrong = trial(model_type)
    assert right.error("packed") < 1e-5
    assert wrong.error("packed") > 0.01
    assert right.agrees("packed")
    assert not wrong.agrees("packed")


def test_a_narrow_model_has_the_layers_of_the_whole_one() -> None:
    config = CONFIG_MAPPING["gemma3_text"](
        num_hidden_layers=34, num_attention_heads=8, num_key_value_heads=4, head_dim=256
    )
    small = narrow(config, 12, "few")
    layers = read_config(json.loads(small.to_json_string(use_diff=False)), "m", "here").layers
    whole = read_config(json.loads(config.to_json_string(use_diff=False)), "m", "here").layers
    assert [layer.reach.kind for layer in layers] == [layer.reach.kind for layer in whole[:12]]
    assert {layer.reach for layer in layers} == {Reach(), Reach("window", 8)}
    assert {layer.vectors for layer in layers} == {((2, 256), (2, 256))}
    assert sum(weight.numel() for weight in random_model(small).parameters()) < 3_000_000


@torch.inference_mode()
def greedy(directory, tokens: int) -> list[int]:
    """The model's own answer, by a forward pass over everything for each token."""
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    ids = list(PROMPT)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def engine_answer(directory, tokens: int, max_length: int | None = None) -> list[int]:
    """The engine's answer beside other requests, in chunks of at most nine tokens a step."""
    config = EngineConfig(2**20, block_size=4, token_budget=9, max_length=max_length)
    engine = Engine(load_model(directory), config)
    prompts = [PROMPT[::-1], PROMPT, PROMPT[:3]]
    return list(engine.generate(prompts, tokens, SamplingParams(ignore_eos=True))[1].token_ids)


@pytest.mark.parametrize(
    "model_type", ["bloom", "roberta", "gemma3n_text", "deepseek_v3", "llama4_text", "gpt_oss"]
)
def test_the_engine_answers_as_the_model_does(model_type: str, tmp_path) -> None:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(tiny(model_type))
    for weight in model.parameters():
        weight.data.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(tmp_path)
    assert engine_answer(tmp_path, 16, max_length=64) == greedy(tmp_path, 16)


def test_an_indexer_bounds_requests(tmp_path) -> None:
    AutoModelForCausalLM.from_config(tiny("deepseek_v32", index_topk=24)).save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.spec.max_length == 24
    assert engine_answer(tmp_path, 10) == greedy(tmp_path, 10)
    with pytest.raises(KvhouseError, match="takes 1 to 24 tokens"):
        Engine(loaded, EngineConfig(2**20, max_length=25))


def test_dynamic_rope_is_the_same_up_to_the_longest_context(tmp_path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    config = transformers.LlamaConfig(
        **CONFIGS["llama"] | {"max_position_embeddings": 30, "rope_parameters": rope}
    )
    assert capability(config).max_length is None
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert engine_answer(tmp_path, 16) == greedy(tmp_path, 16)  # the 30th token among them
