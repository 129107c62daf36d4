"""The form of every family whose weights are counted exactly, one declarative entry each.

Each entry is compared with the model that transformers builds from the same config.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvhouse.spec.attention import head_dim
from kvhouse.spec.config import MOST_TOKENS, Config
from kvhouse.spec.weight_experts import (
    by_period,
    by_step,
    ernie,
    everywhere,
    from_layer,
    llama4,
)
from kvhouse.spec.weights import Form, Part, Switch, linear, mlp, on


def _flag_norms(flag: str, with_it: int, without: int) -> Callable[[Config], int]:
    return lambda config: with_it if on(config, flag) else without


def table(padding: int = 0) -> Callable[[Config], int]:
    """A position table with rows for the longest context and some padding."""

    def weights(config: Config) -> int:
        return (config.integer("max_position_embeddings", MOST_TOKENS) + padding) * config.hidden

    return weights


def _falcon_norms(config: Config) -> int:
    """Falcon: two norms in a parallel layer of the newer form, or if so many are stated."""
    if not config.flag("parallel_attn", True):
        return 2
    newer = config.flag("new_decoder_architecture", False)
    return config.maybe("num_ln_in_parallel_attn") or (2 if newer else 1)


def _opt_final_norm(config: Config) -> bool:
    removed = config.flag("_remove_final_layer_norm", False)
    return config.flag("do_layer_norm_before", True) and not removed


def _bridge(config: Config) -> Part:
    """OPT-350M: projections between the embeddings' width and the residual stream's."""
    narrow = config.maybe("word_embed_proj_dim") or config.hidden
    both = linear(narrow, config.hidden) + linear(config.hidden, narrow)
    return both if narrow != config.hidden else Part()


def _embedding_norm(vectors: int) -> Callable[[Config], Part]:
    return lambda config: Part(others=vectors * config.hidden)


def _alphas(_: Config, __: int, ___: str) -> Part:
    """Apertus: two learned numbers in the activation (xIELU)."""
    return Part(others=2)


def _sub_norms(config: Config, _: int, __: str) -> Part:
    """BitNet: a norm before each output projection."""
    return Part(others=config.hidden + config.size("intermediate_size"))


def _lambdas(config: Config, _: int, __: str) -> Part:
    """Differential attention (arXiv 2410.05258): four vectors of a head's width."""
    return Part(others=4 * head_dim(config))


def _compressed_sandwich(config: Config) -> int:
    return 4 if config.flag("use_sandwich_norm", True) else 2


def _lfm2_mlp(config: Config, _: int, __: str) -> Part:
    """LFM2: the stated width is cut to two thirds and rounded up, unless a flag forbids it."""
    inner = config.size("intermediate_size")
    if config.flag("block_auto_adjust_ff_dim", True):
        inner, multiple = int(2 * inner / 3), config.size("block_multiple_of")
        if config.states("block_ffn_dim_multiplier"):
            scaled = int(config.number("block_ffn_dim_multiplier") * inner)
            inner = -(-scaled // multiple) * multiple
    return mlp(inner, config.hidden, Form())


_BIAS: Switch = "attention_bias"
_PLAIN = Form()
_LLAMA = Form(qkv_bias=_BIAS, output_bias=_BIAS, mlp_bias="mlp_bias")
_ATTENTION_BIAS = Form(qkv_bias=_BIAS, output_bias=_BIAS)
_QWEN3 = replace(_ATTENTION_BIAS, qk_norm="dim")
_LAYER_NORM = Form(norm=2, gated=False, qkv_bias=True, output_bias=True, mlp_bias=True)
_FOUR_NORMS = replace(_ATTENTION_BIAS, norms=4)
_FROM_FIRST = from_layer("first_k_dense_replace")
_DEEPSEEK = replace(_ATTENTION_BIAS, sparse=_FROM_FIRST, shared="count", router=1)
_QWEN_MOE = replace(_QWEN3, sparse=by_step)
_QWEN_NEXT = replace(_QWEN_MOE, shared="width", shared_gate=True, gate="dim", gate_bias=_BIAS)
_GPT2 = replace(_LAYER_NORM, widths=("n_inner", "intermediate_size"), ratio=4, positions=table())
_GPTJ = Form(
    norm=2, norms=1, gated=False, mlp_bias=True, head_bias=True, widths=("n_inner",), ratio=4
)
_GRANITE_MOE = Form(qkv_bias=_BIAS, output_bias=_BIAS, sparse=everywhere, shared="width")

_DENSE = {
    "apertus": replace(_QWEN3, gated=False, beside=(_alphas,)),
    "apertus1p5_text": replace(_QWEN3, gated=False, beside=(_alphas,)),
    "arcee": replace(_LLAMA, gated=False),
    "bitnet": replace(_ATTENTION_BIAS, beside=(_sub_norms,)),
    "bloom": replace(_LAYER_NORM, widths=("ffn_hidden",), ratio=4, once=(_embedding_norm(2),)),
    "codegen": _GPTJ,
    "cohere": replace(_ATTENTION_BIAS, norms=1, qk_norm="width", qk_when="use_qk_norm"),
    "cohere2": replace(_ATTENTION_BIAS, norms=1),
    "cohere_compass_text": replace(_ATTENTION_BIAS, norms=1),
    "cwm": Form(mlp_bias="mlp_bias"),
    "diffllama": replace(_ATTENTION_BIAS, beside=(_lambdas,)),
    "emu3_text_model": _LLAMA,
    "ernie4_5": Form(qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"),
    "exaone": _LLAMA,
    "exaone4": replace(_PLAIN, qk_norm="dim"),
    "falcon": Form(
        gated=False,
        norm=2,
        norms=_falcon_norms,
        qkv_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        widths=("ffn_hidden_size",),
        ratio=4,
    ),
    "gemma": _ATTENTION_BIAS,
    "gemma2": _FOUR_NORMS,
    "gemma3_text": replace(_FOUR_NORMS, qk_norm="dim"),
    "glm": Form(qkv_bias=_BIAS),
    "glm4": Form(qkv_bias=_BIAS, norms=4),
    "gpt-sw3": _GPT2,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": replace(_GPT2, qkv_bias=False, widths=("intermediate_size",)),
    "gpt_neox": replace(_LAYER_NORM, qkv_bias=_BIAS, output_bias=_BIAS),
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granite_swa": replace(_LLAMA, sinks=True),
    "helium": Form(qkv_bias=_BIAS, mlp_bias="mlp_bias"),
    "hunyuan_v1_dense": _QWEN3,
    "hyperclovax": replace(_LLAMA, norms=_flag_norms("use_post_norm", 4, 2)),
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "jais2": replace(_LAYER_NORM, qkv_bias=_BIAS, output_bias=_BIAS, mlp_bias="mlp_bias"),
    "llama": _LLAMA,
    "minicpm3": _LLAMA,
    "ministral": _PLAIN,
    "ministral3": _PLAIN,
    "mistral": _PLAIN,
    "mpt": Form(gated=False, widths=("expansion",), ratio=4),
    "nanochat": replace(_ATTENTION_BIAS, gated=False, norm=0),
    "nemotron": replace(_LLAMA, gated=False, norm=2),
    "olmo": replace(_ATTENTION_BIAS, norm=0),
    "olmo2": replace(_ATTENTION_BIAS, qk_norm="width"),
    "olmo3": replace(_ATTENTION_BIAS, qk_norm="width"),
    "openai-gpt": replace(_GPT2, final_norm=False, widths=("inner",)),
    "opt": replace(
        _LAYER_NORM,
        qkv_bias="enable_bias",
        output_bias="enable_bias",
        mlp_bias="enable_bias",
        widths=("ffn_dim",),
        positions=table(2),
        norm=lambda config: 2 * config.flag("layer_norm_elementwise_affine", True),
        final_norm=_opt_final_norm,
        once=(_bridge,),
        narrow="word_embed_proj_dim",
    ),
    "persimmon": replace(_LAYER_NORM, qk_norm="dim", qk_vectors=2, qk_when="qk_layernorm"),
    "phi": replace(
        _LAYER_NORM, norms=1, head_bias=True, qk_norm="dim", qk_vectors=2, qk_when="qk_layernorm"
    ),
    "phi3": _PLAIN,
    "phi4_multimodal": _PLAIN,
    "qwen2": Form(qkv_bias=True),
    "qwen3": _QWEN3,
    "seed_oss": Form(qkv_bias=_BIAS, output_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "smollm3": _LLAMA,
    "stablelm": Form(
        norm=2,
        norms=_flag_norms("use_parallel_residual", 1, 2),
        qkv_bias="use_qkv_bias",
        qk_norm="width",
        qk_when="qk_layernorm",
    ),
    "starcoder2": replace(
        _LAYER_NORM, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"
    ),
    "vaultgemma": _ATTENTION_BIAS,
    "xglm": replace(_LAYER_NORM, widths=("ffn_dim",)),
    "youtu": _ATTENTION_BIAS,
}

_MIXTURES = {
    "afmoe": replace(
        _QWEN3,
        norms=4,
        gate="dim",
        sparse=from_layer("num_dense_layers"),
        shared="count",
        router=1,
    ),
    "aria_text": replace(_LLAMA, sparse=everywhere, shared="count"),
    "deepseek_v2": replace(_DEEPSEEK, mlp_bias="mlp_bias", router=0),
    "deepseek_v3": _DEEPSEEK,
    "dots1": replace(_DEEPSEEK, qk_norm="dim"),
    "ernie4_5_moe": Form(
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        head_bias="use_bias",
        sparse=ernie,
        shared="count",
        router=1,
    ),
    "exaone_moe": replace(_DEEPSEEK, qkv_bias=False, output_bias=False, qk_norm="dim"),
    "flex_olmo": replace(_ATTENTION_BIAS, qk_norm="width", sparse=everywhere),
    "flint": replace(_QWEN_MOE, shared="width", sinks=True),
    "glm4_moe": replace(_DEEPSEEK, output_bias=False, qk_norm="dim", qk_when="use_qk_norm"),
    "glm4_moe_lite": replace(_DEEPSEEK, sparse=from_layer(default=1)),
    "granitemoe": replace(_GRANITE_MOE, shared=""),
    "granitemoe_swa": replace(_GRANITE_MOE, sinks=True),
    "granitemoeshared": _GRANITE_MOE,
    "hy_v3": replace(_DEEPSEEK, mlp_bias="mlp_bias", qk_norm="dim", sparse=from_layer(default=1)),
    "kolibri1": replace(
        _PLAIN, norms=4, qk_norm="dim", sparse=everywhere, shared="width", router=1
    ),
    "laguna": replace(_QWEN3, gate="head", sparse=from_layer(default=1), shared="width", router=1),
    "mellum": replace(_QWEN3, sparse=everywhere),
    "minimax_m2": Form(qk_norm="width", sparse=everywhere, router=1),
    "mixtral": Form(sparse=everywhere),
    "olmoe": replace(_ATTENTION_BIAS, qk_norm="width", sparse=everywhere),
    "phimoe": replace(_ATTENTION_BIAS, norm=2, head_bias="lm_head_bias", sparse=everywhere),
    "qwen2_moe": Form(qkv_bias="qkv_bias", sparse=by_step, shared="width", shared_gate=True),
    "qwen3_moe": _QWEN_MOE,
    "sarvam_mla": _DEEPSEEK,
    "sarvam_moe": replace(_DEEPSEEK, output_bias=False, qk_norm="dim", qk_when="use_qk_norm"),
    "solar_open": replace(_DEEPSEEK, output_bias=False, sparse=everywhere),
    "llama4_text": replace(
        _ATTENTION_BIAS, sparse=llama4, shared="one", widths=("intermediate_size_mlp",)
    ),
    "jamba": Form(sparse=by_period),
    "qwen3_next": _QWEN_NEXT,
    "qwen3_5_text": replace(_QWEN3, gate="dim", gate_bias=_BIAS),
    "qwen3_5_moe_text": replace(_QWEN_NEXT, sparse=everywhere),
    "lara_mini": replace(_QWEN3, sparse=everywhere, shared="width"),
    "minimax": Form(sparse=everywhere),
    "granitemoehybrid": _GRANITE_MOE,
    "lfm2_moe": Form(
        qk_norm="dim",
        sparse=from_layer("num_dense_layers"),
        router=lambda config: int(config.flag("use_expert_bias", True)),
    ),
    "lfm3": replace(
        _QWEN3, norms=_compressed_sandwich, gate="head", gate_when="use_attention_gate"
    ),
    "lfm2": Form(qk_norm="dim", feed=_lfm2_mlp),
    "bamba": _LLAMA,
    "falcon_h1": _LLAMA,
}

FORMS = {**_DENSE, **_MIXTURES}
