"""Fields that say how memory is kept, in a config whose class knows nothing of them.

A class ignores a field that it does not have, and so would its reader: a file that states a latent
under the type of a plain model would be counted as plain. Such files come with code of their own.
"""

from __future__ import annotations

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.config import Config

#: Classes whose attention is latent wherever it attends at all.
LATENT = frozenset(
    [
        *("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32"),
        *("dots3_note_text", "glm4_moe_lite", "glm_moe_dsa", "hy_v4", "kimi_linear"),
        *("longcat_flash", "minicpm3", "sarvam_mla", "youtu"),
    ]
)
_INDEXED = frozenset(
    [
        *("axk2", "deepseek_v32", "deepseek_v4", "dots3_note_text", "glm_moe_dsa", "hy_v4"),
        "minimax_m3_vl_text",
    ]
)
_DELTA = frozenset(
    [
        *("lara_mini", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
        "qwen4_exp_text",
    ]
)
_MAMBA = frozenset(["bamba", "falcon_h1", "granitemoehybrid", "jamba", "zamba", "zamba2"])
_NOBODY: frozenset[str] = frozenset()

#: For each field what it means, and the types whose classes have it.
MARKS: dict[str, tuple[str, frozenset[str]]] = {
    "kv_lora_rank": ("latent attention (MLA)", LATENT),
    "use_mla": ("latent attention (MLA)", _NOBODY),
    "v_head_dim": ("values of a size of their own", LATENT | {"mimo_v2_flash"}),
    "index_head_dim": ("a sparse indexer", _INDEXED),
    "index_topk": ("a sparse indexer", _INDEXED - {"minimax_m3_vl_text"}),
    "sparse_attention_config": ("a sparse indexer", frozenset(["minimax_m3_vl_text", "step3p5"])),
    "compress_ratios": ("compressed attention", frozenset(["deepseek_v4"])),
    "linear_attn_config": ("linear layers", frozenset(["kimi_linear"])),
    "linear_num_value_heads": ("linear layers", _DELTA),
    "layer_group_size": ("linear layers", frozenset(["bailing_hybrid"])),
    "hybrid_override_pattern": ("recurrent layers", frozenset(["nemotron_h"])),
    "mamba_d_state": ("recurrent layers", _MAMBA),
    "hybrid_layer_pattern": ("sliding layers", frozenset(["mimo_v2_flash"])),
    "attention_other_setting": ("layers that differ", frozenset(["step3p5"])),
    "cross_attention_layers": ("cross attention", frozenset(["mllama_text_model"])),
    "num_kv_shared_layers": (
        "shared KV",
        frozenset(["gemma3n_text", "gemma4_text", "gemma4_unified_text"]),
    ),
    "use_cla": ("shared KV", _NOBODY),
}


def refuse_foreign_marks(config: Config) -> None:
    """Refuse a config with memory of a kind that its class does not have.

    Raises:
        UnsupportedModel: A field says so; the message names it.
    """
    for name, (what, types) in MARKS.items():
        if config.stated.get(name) and config.model_type not in types:
            raise UnsupportedModel(
                f"{config.where}: not supported: field {name!r}: {what}, "
                f"which model type {config.model_type!r} does not have"
            )
