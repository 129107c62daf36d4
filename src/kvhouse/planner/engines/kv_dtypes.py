"""Bytes of keys and values in the formats of other engines, scales included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show
from kvhouse.spec.tensors import ELEMENT_BYTES


@dataclass(frozen=True, slots=True)
class KVType:
    """A format that stores ``elements`` numbers in ``bytes``, with the scales among them.

    Attributes:
        name: As the engine calls it.
        elements: Numbers in one block of the format.
        bytes: Bytes of one block.
        head_scale_bytes: Bytes beside each head's vector, where it has a scale of its own.
    """

    name: str
    elements: int
    bytes: int
    head_scale_bytes: int = 0

    def vector_bytes(self, elements: int) -> int:
        """Bytes of one head's vector; a part of a block takes a whole one."""
        return -(-elements // self.elements) * self.bytes + self.head_scale_bytes


def _plain(name: str, size: int) -> KVType:
    return KVType(name, 1, size)


#: vLLM, ``--kv-cache-dtype`` (``CacheDType`` in vllm/config/cache.py; the page sizes are those of
#: ``AttentionSpec`` in vllm/v1/kv_cache_interface.py). ``fp8_ds_mla`` is MLA's alone: ``latents``.
VLLM = {
    **{name: _plain(name, size) for name, size in ELEMENT_BYTES.items() if name != "int64"},
    **{name: _plain(name, 1) for name in ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")},
    "int8_per_token_head": KVType("int8_per_token_head", 1, 1, 4),
    "fp8_per_token_head": KVType("fp8_per_token_head", 1, 1, 4),
    "nvfp4": KVType("nvfp4", 16, 9),
}
#: SGLang, ``--kv-cache-dtype``.
SGLANG = {
    **{name: _plain(name, size) for name, size in ELEMENT_BYTES.items() if name != "int64"},
    **{name: _plain(name, 2) for name in ("bf16",)},
    **{name: _plain(name, 1) for name in ("fp8", "fp8_e4m3", "fp8_e5m2")},
    "fp4_e2m1": KVType("fp4_e2m1", 16, 9),
}
#: llama.cpp, ``--cache-type-k`` and ``--cache-type-v``: blocks of ggml's types (ggml-common.h).
LLAMA_CPP = {
    "f32": _plain("f32", 4),
    "f16": _plain("f16", 2),
    "bf16": _plain("bf16", 2),
    "q8_0": KVType("q8_0", 32, 34),
    "q5_1": KVType("q5_1", 32, 24),
    "q5_0": KVType("q5_0", 32, 22),
    "q4_1": KVType("q4_1", 32, 20),
    "q4_0": KVType("q4_0", 32, 18),
    "iq4_nl": KVType("iq4_nl", 32, 18),
}
#: TensorRT-LLM and other engines that store elements without scales beside them.
PLAIN = {
    **{name: _plain(name, size) for name, size in ELEMENT_BYTES.items() if name != "int64"},
    **{name: _plain(name, 1) for name in ("fp8", "int8")},
    "nvfp4": KVType("nvfp4", 16, 9),
}

#: Other names of the same types.
_SHORT = {"f32": "float32", "fp32": "float32", "bf16": "bfloat16"} | dict.fromkeys(
    ["f16", "fp16", "half"], "float16"
)


def kv_type(types: Mapping[str, KVType], name: str, engine: str) -> KVType:
    """Look a format up by the engine's name for it.

    Raises:
        KvhouseError: The engine has no such format; the message lists those it has.
    """
    found = types.get(name) or types.get(_SHORT.get(name, ""))
    if found is None:
        raise KvhouseError(f"{engine}: no KV dtype {show(name)}: choose one of {', '.join(types)}")
    return found


def model_dtype(name: str) -> str:
    """The full name of a model's dtype."""
    return _SHORT.get(name, name)


def narrow(dtype: str) -> str:
    """What engines for GPUs run a model of ``dtype`` in: float32 weights are run in 16 bits."""
    return "bfloat16" if dtype == "float32" else dtype
