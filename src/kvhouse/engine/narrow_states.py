"""The fields of recurrent states, in a config whose stream was made narrow.

These sizes hang together: an SSM is ``expand`` times as wide as the stream, is shared out to
heads, and those to groups. And some classes pass on what they once derived from a wider stream.
"""

from __future__ import annotations

from typing import Any

#: The stream of a model that has no heads of attention; xLSTM needs as much.
_WIDTH = 128
_MOST_GROUPS = 2
_CHUNK = 8
_EXPAND = ("mamba_expand", "expand")
_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "num_heads")
_HEAD_DIMS = ("mamba_d_head", "mamba_head_dim", "head_dim")
_GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
#: Where Kimi's configs have the heads of linear attention.
_INNER = "linear_attn_config"
_LINEAR = ("linear_num_key_heads", "linear_num_heads", _INNER)
#: Fields that only models with states have.
_MARKS = (*_EXPAND, *_LINEAR, "lru_width", "qk_dim_factor", "rescale_every")
#: What classes derive from the stream's width unless it is given.
_DERIVED = ("attention_hidden_size", "lru_width", "mamba_headdim", "kv_channels")


def narrow_states(values: dict[str, Any]) -> None:
    """Make the fields of states fit to the stream's width; other models are left alone.

    Args:
        values: A decoder's fields; those of attention, and the stream with it, are narrow.
    """
    if not any(name in values for name in _MARKS):
        return
    if values.get("attention_hidden_size"):
        values.pop("attention_head_dim", None)
    for name in _DERIVED:
        values.pop(name, None)
    attends = "num_attention_heads" in values
    if not attends:
        for name in ("hidden_size", "embedding_dim"):
            if name in values:
                values[name] = _WIDTH
        if "expand" in values:
            values.pop("intermediate_size", None)
    _narrow_linear(values)
    _narrow_ssm(values, _HEADS[:-1] if attends else _HEADS)


def _narrow_linear(values: dict[str, Any]) -> None:
    """Few heads of linear attention; a key's head serves as many of values as before."""
    for fields, name in ((values, "linear_num_heads"), (values.get(_INNER), "num_heads")):
        if isinstance(fields, dict) and fields.get(name):
            fields[name] = min(fields[name], _MOST_GROUPS)
    keys, queries = values.get("linear_num_key_heads"), values.get("linear_num_value_heads")
    if keys and queries:
        fewer = min(keys, _MOST_GROUPS)
        values["linear_num_key_heads"] = fewer
        values["linear_num_value_heads"] = fewer * max(1, queries // keys)


def _narrow_ssm(values: dict[str, Any], head_names: tuple[str, ...]) -> None:
    """Two heads for each of at most two groups, which share out the inner width."""
    expand = _first(values, _EXPAND)
    heads = _first(values, head_names)
    if expand is None or heads is None:
        return
    groups = _first(values, _GROUPS)
    if groups is not None:
        values[groups] = min(values[groups], _MOST_GROUPS)
    fewer = min(values[heads], 2 * (values[groups] if groups else 1))
    inner = int(values[expand] * values["hidden_size"])
    values[heads] = fewer
    dims = _first(values, _HEAD_DIMS[:-1] if "num_attention_heads" in values else _HEAD_DIMS)
    if dims is not None:
        values[dims] = inner // fewer
    if values.get("mamba_d_ssm"):
        values["mamba_d_ssm"] = inner
    for name in ("mamba_chunk_size", "chunk_size"):
        if values.get(name):
            values[name] = min(values[name], _CHUNK)


def _first(values: dict[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if values.get(name)), None)
