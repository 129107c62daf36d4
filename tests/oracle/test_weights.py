"""Weights counted from a config are those of the model that transformers builds from it."""

import copy
import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from kvhouse.spec import ModelSpec
from kvhouse.spec.hf_config import read_config
from kvhouse.spec.weight_count import class_fields

pytestmark = pytest.mark.filterwarnings("ignore")

HERE = Path(__file__).parent
CONFIGS = [json.loads(line) for line in (HERE / "tiny_configs.jsonl").read_text().splitlines()]
#: Types that are refused, or that cannot be built here.
UNSUPPORTED = json.loads((HERE / "unsupported.json").read_text())
#: Sizes are read from the file or not at all; or the class leaves them to the file.
STATED = {("qwen3", "minimal"), ("olmo_hybrid", "class_defaults")}
#: Types that are only estimated. The tolerance holds for a model of the class's own sizes, unless
#: the class has none or cannot be built from them: then for the tiny one.
TOLERANCE = 0.15
ESTIMATED = {
    *("axk2", "cpmant", "ctrl", "doge", "dory", "gpt_neox_japanese", "hy_v4"),
    *("inkling2_loop_text", "inkling2_text", "inkling_text", "modernbert-decoder", "prophetnet"),
    *("reformer", "rembert", "roc_bert", "roformer", "xlm", "xlnet", "xmod", "zaya"),
}
ESTIMATED_TINY = {
    *("dots3_note", "dots3_note_text", "qwen4_exp", "qwen4_exp_text", "git", "musicgen"),
    *("musicgen_melody",),
}
#: What lies beside the decoder in a model of several parts.
BESIDE = re.compile(
    r"vision|visual|multi_modal|audio|image_encoder|embed_tokens_extend|embed_vision"
)
#: Parameters of two or more dimensions that no token is multiplied with.
NO_PRODUCT = re.compile(
    r"embed(?!.*proj)|wte|wpe|position_(emb|bias)|conv|norm|A_log|\bbias|time_|\.D$|word_emb|"
    r"tokens_embed|statics"
)
#: Names of heads that multiply.
HEAD = re.compile(r"(^|\.)(lm_head|head|embed_out)\.weight$")


def label(row: dict[str, Any]) -> str:
    return f"{row['model_type']}-{row.get('variant', 'default')}"


def rows() -> list[dict[str, Any]]:
    return [
        row
        for row in CONFIGS
        if row["model_type"] not in UNSUPPORTED
        and (row["model_type"], row.get("variant")) not in STATED
    ]


def build(config: Any) -> Any:
    """The causal LM without memory for its weights; of MusicGen, the decoder alone."""
    with torch.device("meta"):
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        decoder = getattr(config, "decoder", None)
        if isinstance(decoder, model_class.config_class):
            return model_class._from_config(decoder)
        return AutoModelForCausalLM.from_config(config)


#: Buffers that checkpoints hold as weights.
ROUTER = re.compile(r"(e_score_correction|expert)_bias$")


def counted(model: Any) -> int:
    """Parameters of the decoder, tied ones once, and the corrections of routers.

    LongCat-Flash's class makes room for experts that compute nothing; no checkpoint has it.
    """
    total = sum(one.numel() for name, one in model.named_buffers() if ROUTER.search(name))
    for name, weight in model.named_parameters():
        rows = weight.shape[0]
        if name.endswith("experts.gate_up_proj") and hasattr(model.config, "zero_expert_num"):
            rows -= model.config.zero_expert_num
        total += 0 if BESIDE.search(name) else weight.numel() // weight.shape[0] * rows
    return total


def decoder_parameters(spec: ModelSpec) -> int:
    """Without what the spec says it estimates for other parts."""
    beside = re.search(r"estimated at ([\d,]+) weights", spec.weights_note)
    assert spec.parameters is not None, spec.weights_unknown
    return spec.parameters - (int(beside[1].replace(",", "")) if beside else 0)


def both_forms(row: dict[str, Any], config: Any) -> list[ModelSpec]:
    published = {"model_type": row["model_type"], **row["config"]}
    saved = json.loads(config.to_json_string(use_diff=True))
    return [read_config(one, "m", "here") for one in (published, saved)]


@pytest.mark.parametrize("row", rows(), ids=label)
def test_parameters(row: dict[str, Any]) -> None:
    kind = row["model_type"]
    config = CONFIG_MAPPING[kind](**copy.deepcopy(row["config"]))
    theirs = counted(build(config))
    for spec in both_forms(row, config):
        if kind in ESTIMATED_TINY:
            assert spec.weights_basis == "estimated"
            assert "variant" in row or abs(decoder_parameters(spec) / theirs - 1) < TOLERANCE
        elif kind in ESTIMATED:
            assert spec.weights_basis == "estimated"
        else:
            assert (
                spec.weights_basis == "exact"
                or "parts for" in spec.weights_note
                or "beside" in spec.weights_note
            )
            assert decoder_parameters(spec) == theirs


def test_no_type_is_left_out_of_the_tables() -> None:
    types = {row["model_type"] for row in CONFIGS}
    assert types >= ESTIMATED | ESTIMATED_TINY
    exact = types - ESTIMATED - ESTIMATED_TINY - set(UNSUPPORTED)
    assert len(exact) >= 160


@pytest.mark.parametrize("model_type", sorted(ESTIMATED))
def test_estimates_of_models_of_their_usual_size(model_type: str) -> None:
    config = CONFIG_MAPPING[model_type]()
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    spec = read_config(json.loads(config.to_json_string(use_diff=False)), "m", "here")
    assert spec.weights_basis == "estimated"
    assert spec.weights_note
    assert abs(decoder_parameters(spec) / counted(build(config)) - 1) < TOLERANCE


def routed(name: str, shape: torch.Size, spec: ModelSpec) -> bool:
    """Whether a parameter holds all experts of a layer."""
    experts = spec.experts[0].experts if spec.experts else 0
    return "expert" in name and len(shape) == 3 and shape[0] == experts


def products(model: Any, spec: ModelSpec) -> int:
    """Weights that one token is multiplied with, by the shapes and names of the parameters."""
    total, head = 0, False
    linear = {
        f"{name}.weight" for name, one in model.named_modules() if isinstance(one, torch.nn.Linear)
    }
    share = (spec.experts[0].active, spec.experts[0].experts) if spec.experts else (0, 1)
    for name, weight in model.named_parameters():
        if BESIDE.search(name) or name.endswith("bias") or weight.dim() < 2:
            continue
        head = head or bool(HEAD.search(name))
        if routed(name, weight.shape, spec):
            total += weight.numel() * share[0] // share[1]
        elif name in linear or not NO_PRODUCT.search(name):
            total += weight.numel()
    width = getattr(model.config.get_text_config(decoder=True), "word_embed_proj_dim", None)
    return total if head else total + spec.vocab_size * (width or spec.hidden_size)


#: Their experts lie in two dimensions, hold attention too, or their heads and tables have names
#: that tell nothing.
UNREADABLE = {
    *("dbrx", "jetmoe", "longcat_flash", "data2vec-text", "electra", "roberta"),
    *("roberta-prelayernorm", "xlm-roberta-xl", "bigbird_pegasus", "camembert", "xlm-roberta"),
}


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in rows()
        if row["model_type"] not in ESTIMATED | ESTIMATED_TINY | UNREADABLE and "variant" not in row
    ],
    ids=label,
)
def test_products(row: dict[str, Any]) -> None:
    config = CONFIG_MAPPING[row["model_type"]](**copy.deepcopy(row["config"]))
    spec = both_forms(row, config)[0]
    assert spec.matmul_parameters == products(build(config), spec)


def test_absent_fields_mean_what_the_classes_put_in_their_place() -> None:
    for model_type, values in class_fields().items():
        fields = dataclasses.fields(CONFIG_MAPPING[model_type])
        theirs = {one.name: one.default for one in fields}
        for name, value in values.items():
            assert json.loads(json.dumps(theirs[name])) == value, (model_type, name)


def switches(model_type: str) -> list[str]:
    """Flags of the class that may change its weights."""
    fields = dataclasses.fields(CONFIG_MAPPING[model_type])
    named = re.compile(r"bias|norm|tie_|gate|enable|use_(?!cache|mamba|mem|kernel|return)|parallel")
    return [one.name for one in fields if isinstance(one.default, bool) and named.search(one.name)]


#: Changed alone they are refused by the class (InternLM3), or untied embeddings make it copy the
#: blocks that its layers share, which no checkpoint does (Zamba).
NOT_ALONE = {
    *(("internlm3", "attention_bias"), ("internlm3", "mlp_bias")),
    *(("zamba", "tie_word_embeddings"), ("zamba2", "tie_word_embeddings")),
}
FLAGS = [
    (row, flag)
    for row in rows()
    if "variant" not in row
    and row["model_type"] not in ESTIMATED | ESTIMATED_TINY
    and not any(isinstance(value, dict) for value in row["config"].values())
    for flag in switches(row["model_type"])
    if (row["model_type"], flag) not in NOT_ALONE
]


@pytest.mark.parametrize(
    ("row", "flag"), FLAGS, ids=lambda x: x if isinstance(x, str) else label(x)
)
def test_flags_change_what_they_change_in_transformers(row: dict[str, Any], flag: str) -> None:
    kind = row["model_type"]
    default = next(f.default for f in dataclasses.fields(CONFIG_MAPPING[kind]) if f.name == flag)
    changed = {**copy.deepcopy(row["config"]), flag: not default}
    spec = read_config({"model_type": kind, **changed}, "m", "here")
    config = CONFIG_MAPPING[kind](**copy.deepcopy(changed))
    assert decoder_parameters(spec) == counted(build(config))
