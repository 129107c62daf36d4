"""Forms of families that are counted approximately, each with what its form leaves out.

The sizes are the family's own; what is left out are parts that no other family has. A test holds
each estimate within 15 % of the model that transformers builds.
"""

from __future__ import annotations

from dataclasses import replace

from kvhouse.spec.config import Config
from kvhouse.spec.weight_encoders import ENCODERS
from kvhouse.spec.weight_experts import COUNTS, everywhere, first, from_layer
from kvhouse.spec.weight_forms import FORMS
from kvhouse.spec.weight_rare import RARE, nas_feed, nas_mixer
from kvhouse.spec.weights import Form, Part


def _codebooks(config: Config) -> Part:
    """MusicGen: a table and a head for each further codebook."""
    further = (config.maybe("num_codebooks") or 4) - 1
    return Part(others=2 * further * config.size("vocab_size") * config.hidden)


_WIDTHS = (
    *("intermediate_size", "ffn_hidden_size", "ffn_dim", "decoder_ffn_dim", "n_inner", "dff"),
    *("d_inner", "dim_ff", "feed_forward_size"),
)
_DEEPSEEK = replace(RARE["axk1"], beside=())
_OLD = replace(FORMS["gpt_neox"], qkv_bias=True, output_bias=True, widths=_WIDTHS, ratio=4)
_GATED = replace(FORMS["llama"], gate="dim")

#: By ``model_type``, the form and what it leaves out.
ESTIMATES: dict[str, tuple[Form, str]] = {
    "axk2": (_DEEPSEEK, "gates of the norms and of attention"),
    "cpmant": (replace(FORMS["llama"], widths=_WIDTHS), "tables of positions and segments"),
    "ctrl": (_OLD, "a bias"),
    "doge": (FORMS["llama"], "gates of the residuals and of attention"),
    "dory": (_GATED, "scales of queries, keys and MLP"),
    "dots3_note_text": (_DEEPSEEK, "gates, and layers that slide have sizes of their own"),
    "hy_v4": (_DEEPSEEK, "hyper-connections and gates"),
    "modernbert-decoder": (replace(FORMS["llama"], positions=None), "a matrix before the head"),
    "nemotron-nas": (
        Form(norms=0, mixer=nas_mixer, feed=nas_feed),
        "its own class to compare with",
    ),
    "qwen4_exp_text": (FORMS["qwen3_5_moe_text"], "hyper-connections, indexers, n-gram tables"),
    **dict.fromkeys(
        ["rembert", "roc_bert", "roformer", "xmod"],
        (ENCODERS["bert"], "embeddings and adapters beside the usual ones"),
    ),
    **dict.fromkeys(
        ["git", "gpt_neox_japanese"],
        (_OLD, "biases, positions and further heads"),
    ),
    **dict.fromkeys(["musicgen_melody_decoder"], (replace(_OLD, once=(_codebooks,)), "biases")),
    "musicgen_decoder": (replace(_OLD, cross=True, once=(_codebooks,)), "biases"),
    **dict.fromkeys(["prophetnet", "reformer", "xlm", "xlnet"], (_OLD, "positions")),
}


def general(config: Config) -> Form:
    """The form of a family that has none: that of Llama, with experts where they are stated."""
    plain = replace(FORMS["llama"], widths=_WIDTHS, ratio=4)
    if first(config, COUNTS) is None:
        return plain
    sparse = from_layer("first_k_dense_replace", "num_dense_layers")
    return replace(
        plain, sparse=sparse if config.maybe("intermediate_size") else everywhere, shared="count"
    )
