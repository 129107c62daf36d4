"""From a case's config numbers to a ``ModelSpec``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import gcd
from typing import Any

from kvhouse.planner.engines.cases.case import Case, Missing
from kvhouse.spec.config import MOST_LAYERS, MOST_SIZE
from kvhouse.spec.layers import (
    ChunkedAttention,
    Combined,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    SlidingAttention,
    State,
    WithoutKV,
)
from kvhouse.spec.model import NO_LIMIT, ModelSpec
from kvhouse.spec.rare_layers import SharedVector
from kvhouse.spec.tensors import ELEMENT_BYTES, Convolution, Tensor

_PART = re.compile(r"(\d+)\s*[x×*]?\s+((?:[A-Za-z][\w/\-]*[ ]?)+)")
#: Words of a pattern, most telling first, and the kind of layer that they stand for.
_WORDS = (
    (("parallel",), "parallel"),
    (("without kv", "no kv", "mlp", "moe", "ffn"), "none"),
    (("delta", "gdn", "deltanet"), "delta"),
    (("kda",), "kda"),
    (("mamba1", "mamba-1"), "mamba1"),
    (("mamba", "ssm"), "mamba"),
    (("short conv", "conv"), "conv"),
    (("lightning", "linear"), "lightning"),
    (("chunk", "local chunk"), "chunk"),
    (("sliding", "swa", "local", "window"), "window"),
    (("mla", "latent", "full", "global", "attention", "attn", "gqa", "mha"), "full"),
)


def case_spec(case: Case) -> ModelSpec | None:
    """The model of a case, or None where it states no config.

    A config with a ``model_type`` is read as a model's own file; others are numbers.

    Raises:
        Missing: A number that the kinds of layers need is not stated.
    """
    config = case.part("config")
    if case.spec is not None or not config:
        return case.spec
    if "model_type" in config:
        from kvhouse.spec.hf_config import read_config

        return read_config(config, case.model or "model", "the case's config")
    return _Numbers(config, case).spec()


class _Numbers:
    """A config of bare numbers."""

    def __init__(self, config: Mapping[str, Any], case: Case) -> None:
        self.config, self.case = config, case

    def spec(self) -> ModelSpec:
        return ModelSpec(
            name=self.case.model or "the case's model",
            architecture="",
            layers=tuple(self.layers()),
            hidden_size=self.maybe("hidden_size", "n_embd") or 1,
            vocab_size=1,
            max_length=NO_LIMIT,
            parameters=None,
            matmul_parameters=None,
            dtype=str(self.config.get("torch_dtype") or self.config.get("dtype") or "bfloat16"),
            weights_unknown="the case gives no weights",
        )

    def maybe(self, *names: str) -> int | None:
        for name in names:
            value = self.config.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < MOST_SIZE:
                return value
        return None

    def size(self, *names: str) -> int:
        value = self.maybe(*names)
        if value is None:
            raise Missing(f"config: {names[0]}")
        return value

    def layers(self) -> list[Layer]:
        per_token = self.maybe("bytes_per_token")
        if per_token is not None and self.maybe("num_hidden_layers", "n_layer") is None:
            # Two bytes an element, half of them keys.
            return [FullAttention(1, 1, per_token // 4, per_token // 4)]
        count = self.size("num_hidden_layers", "n_layer", "n_layers")
        if count > MOST_LAYERS:
            raise Missing(f"config: a believable number of layers, not {count:,}")
        return [self.layer(kind) for kind in self.kinds(count)]

    def kinds(self, count: int) -> list[str]:
        """The kind of every layer; their order does not matter here."""
        given = self.config.get("layer_types")
        if isinstance(given, list) and given:
            return [_kind(str(name).replace("_", " ")) for name in given]
        pattern = self.config.get("layer_pattern")
        if isinstance(pattern, str):
            return _pattern(pattern, count, self.other())
        arch = self.case.arch
        interval = self.maybe("full_attention_interval")
        if interval and "linear_num_value_heads" in self.config:
            return ["delta"] * (count - count // interval) + ["full"] * (count // interval)
        if "compressed" in arch and self.maybe("sliding_window"):
            return ["vector"] * count
        if any("chunk" in tag for tag in arch) and self.maybe("attention_chunk_size"):
            return ["full" if (index + 1) % 4 == 0 else "chunk" for index in range(count)]
        if self.maybe("d_inner") and self.maybe("d_state"):
            return ["mamba1"] * count
        if any("hybrid" in tag for tag in arch):
            raise Missing("config: layer_pattern")
        return ["window" if "SWA" in arch else "full"] * count

    def other(self) -> str:
        """The kind of the layers that are not full attention."""
        if "linear_num_value_heads" in self.config:
            return "delta"
        return "window" if self.maybe("sliding_window") else "none"

    def layer(self, kind: str) -> Layer:
        if kind == "none":
            return WithoutKV()
        if kind == "parallel":
            return Combined((self.attention("full"), self.mamba2()))
        if kind == "mamba":
            heads = self.maybe("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
            kind = "mamba1" if heads is None else "mamba2"
        states = {"delta": self.delta, "kda": self.kda, "mamba1": self.mamba1}
        states |= {"mamba2": self.mamba2, "conv": self.conv, "lightning": self.lightning}
        return states[kind]() if kind in states else self.attention(kind)

    def attention(self, kind: str) -> Layer:
        heads = self.maybe("num_attention_heads", "n_head")
        if kind == "vector":
            return SharedVector(heads or 64, self.size("head_dim"), self.size("sliding_window"))
        if self.maybe("kv_lora_rank") and kind == "full":
            rank, rope = self.size("kv_lora_rank"), self.size("qk_rope_head_dim")
            if self.case.assumed.get("mla") is False:
                whole = self.size("num_attention_heads")
                key, value = self.size("qk_nope_head_dim") + rope, self.size("v_head_dim")
                return FullAttention(whole, whole, key, value)
            # Query heads do not weigh; ranks must divide them.
            latent = LatentAttention(heads or 128, rank, rope)
            index = self.maybe("index_head_dim")
            return latent if index is None else Combined((latent, Indexer(index)))
        key, value, kv = self.sizes(kind, heads)
        sizes = (heads or 64 * kv, kv, key, value)
        if kind == "window":
            return SlidingAttention(*sizes, self.size("sliding_window"))
        if kind == "chunk":
            return ChunkedAttention(*sizes, self.size("attention_chunk_size"))
        return FullAttention(*sizes)

    @property
    def arch(self) -> frozenset[str]:
        return self.case.arch

    def sizes(self, kind: str, heads: int | None) -> tuple[int, int, int]:
        """Dimensions of a key and of a value, and KV heads."""
        wide = self.maybe("n_embd_k_gqa")
        if wide is not None:
            return wide, self.maybe("n_embd_v_gqa") or wide, 1
        kv = self.maybe("num_key_value_heads", "n_head_kv")
        if kv is None and heads is not None and not self.arch & {"GQA", "MQA"}:
            kv = heads
        if kv is None:
            raise Missing("config: num_key_value_heads")
        key = self.maybe("head_dim", "n_embd_head_k")
        if key is None:
            if heads is None:
                raise Missing("config: head_dim")
            key = self.size("hidden_size", "n_embd") // heads
        value = self.maybe("v_head_dim", "n_embd_head_v") or key
        if kind == "full":
            own = self.maybe("global_head_dim")
            kv = self.maybe("global_num_key_value_heads", "num_global_key_value_heads") or kv
            key, value = own or key, own or value
        elif kind == "window":
            own = self.maybe("swa_head_dim")
            kv = self.maybe("swa_num_key_value_heads") or kv
            key, value = own or key, self.maybe("swa_v_head_dim") or own or value
        return key, value, kv

    @property
    def served(self) -> str | None:
        stated = self.config.get("mamba_ssm_dtype") or self.config.get("mamba_ssm_cache_dtype")
        return stated if isinstance(stated, str) and stated in ELEMENT_BYTES else None

    def delta(self) -> Layer:
        keys, values = self.size("linear_num_key_heads"), self.size("linear_num_value_heads")
        key, value = self.size("linear_key_head_dim"), self.size("linear_value_head_dim")
        units = gcd(keys, values)
        kernel = self.size("linear_conv_kernel_dim")
        conv = Convolution(2 * keys * key + values * value, kernel, units=units)
        return State((conv, Tensor(values * key * value, "float32", units, self.served)))

    def kda(self) -> Layer:
        inner = self.config.get("linear_attn_config")
        inner = inner if isinstance(inner, Mapping) else {}
        one = _Numbers({**self.config, **inner}, self.case)
        heads = one.size("linear_num_heads", "kda_num_heads", "num_heads")
        own = ("head_dim",) if inner else ()
        dim = one.size(*own, "linear_head_dim", "kda_head_dim", "linear_key_head_dim")
        kernel = one.size("short_conv_kernel_size", "linear_conv_kernel_dim")
        state = Tensor(heads * dim * dim, "float32", heads, "float32")
        return State((Convolution(3 * heads * dim, kernel, units=heads), state))

    def mamba1(self) -> Layer:
        inner = self.maybe("d_inner", "mamba_d_inner")
        inner = inner or self.size("mamba_expand", "expand") * self.size("hidden_size")
        size = self.size("d_state", "mamba_d_state", "state_size", "ssm_state_size")
        kernel = self.size("d_conv", "mamba_d_conv", "conv_kernel")
        state = Tensor(inner * size, "float32", inner, self.served)
        return State((Convolution(inner, kernel, units=inner), state))

    def mamba2(self) -> Layer:
        heads = self.size("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
        inner = self.maybe("mamba_d_ssm", "d_inner", "mamba_intermediate_size")
        inner = inner or heads * self.size("mamba_head_dim", "mamba_d_head")
        groups = self.size("n_groups", "mamba_n_groups", "mamba_ngroups")
        size = self.size("ssm_state_size", "mamba_d_state", "state_size", "d_state")
        kernel = self.size("conv_kernel", "mamba_d_conv", "d_conv", "mamba_conv_kernel")
        channels = inner + 2 * groups * size
        conv = Convolution(channels, kernel, None, heads, groups, 2 * size)
        chunk = self.maybe("mamba_chunk_size", "chunk_size")
        return State((conv, Tensor(inner * size, "float32", heads, self.served)), chunk)

    def conv(self) -> Layer:
        width = self.size("conv_dim", "hidden_size")
        return State((Convolution(width, self.size("conv_L_cache", "conv_kernel"), units=width),))

    def lightning(self) -> Layer:
        heads = self.size("num_attention_heads")
        return State((Tensor(heads * self.size("head_dim") ** 2, units=heads),))


def _kind(words: str) -> str:
    lower = words.lower()
    for telling, kind in _WORDS:
        if any(word in lower for word in telling):
            return kind
    raise Missing(f"config: what layers are {words.strip()!r}")


def _pattern(pattern: str, count: int, other: str) -> list[str]:
    """``16 full attention + 48 gated delta net``; a period such as ``1 full + 3 delta`` repeats.

    ``every 6th full``, ``5:1`` and ``alternating`` say the same of full layers and one other kind.
    """
    every = re.search(r"every\s+(\d+)", pattern) or re.search(r"(\d+)\s*:\s*1\b", pattern)
    if not _PART.search(pattern) and (every or "alternating" in pattern) and other != "none":
        step = 2 if every is None else int(every[1]) + (":" in every[0])
        full = count // max(1, step)
        return [other] * (count - full) + ["full"] * full
    parts = [(int(number), _kind(words)) for number, words in _PART.findall(pattern)]
    whole = sum(number for number, _ in parts)
    kinds = [kind for number, kind in parts for _ in range(number)] if whole <= count else []
    if not kinds or count % len(kinds):
        raise Missing(f"config: a layer_pattern that adds up to {count} layers")
    return kinds * (count // len(kinds))


def draft_layers(spec: ModelSpec, count: int) -> tuple[Layer, ...]:
    """Layers that draft tokens: full attention like the model's own."""
    kinds = (FullAttention, LatentAttention)
    whole = next((layer for layer in spec.layers if type(layer.parts[0]) in kinds), None)
    return () if whole is None else (whole,) * min(count, MOST_LAYERS)


def draft_counts(case: Case) -> list[int]:
    """How many such layers there may be: as many as the config says that predict, or open."""
    config = case.part("config")
    stated = config.get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers")
    count = stated if isinstance(stated, int) and 0 < stated < MOST_LAYERS else 1
    predicts = "mtp" in f"{case.flag('speculative')} {case.model}".lower()
    if predicts or case.flag("speculative") is None:
        return [count]
    return [0, count]
