"""Headers with any metadata at all: a spec or a clear error, whatever the architecture."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.errors import SpecError
from kvhouse.formats import get_format
from kvhouse.spec.gguf_header import Header, Tensor
from kvhouse.spec.gguf_metadata import architectures
from kvhouse.spec.gguf_reader import gguf_spec

KEYS = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "attention.key_length_swa", "attention.key_length_mla"),
    *("attention.kv_lora_rank", "attention.sliding_window", "attention.sliding_window_pattern"),
    *("attention.shared_kv_layers", "attention.recurrent_layers", "attention.compress_ratios"),
    *("attention.indexer.key_length", "attention.indexer.types", "attention.causal"),
    *("rope.dimension_count", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size"),
    *("ssm.group_count", "kda.head_dim", "wkv.head_size", "shortconv.l_cache", "num_loops"),
    *("nextn_predict_layers", "expert_count", "expert_used_count", "full_attention_interval"),
    *("hrm.layers_per_stack", "token_shift_count"),
)
small = st.integers(0, 9)
value = st.one_of(
    small,
    st.lists(small, max_size=9),
    st.lists(st.booleans(), max_size=9),
    st.integers(-(2**63), 2**64),
    st.booleans(),
    st.floats(),
    st.text(max_size=4),
)
#: Sizes with which a model of any kind could be read, so that what follows them is reached too.
SOUND: dict[str, Any] = {
    "block_count": 4,
    "embedding_length": 8,
    "context_length": 64,
    "attention.head_count": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 16,
    "ssm.state_size": 4,
    "attention.indexer.key_length": 4,
}


@settings(max_examples=400)
@given(
    st.sampled_from(sorted(architectures())),
    st.dictionaries(st.sampled_from(KEYS), value, max_size=6),
    st.dictionaries(st.sampled_from(["k", "v", "qkv", "kv_a_mqa"]), st.integers(1, 64), max_size=2),
)
def test_any_metadata(architecture: str, changes: dict[str, Any], rows: dict[str, int]) -> None:
    metadata = {f"{architecture}.{key}": one for key, one in (SOUND | changes).items()}
    metadata["general.architecture"] = architecture
    tensors = {"token_embd.weight": Tensor("token_embd.weight", "F32", (8, 5), 0, 160)}
    for index in range(4):
        tensors[f"blk.{index}.attn_norm.weight"] = Tensor("norm", "F32", (8,), 0, 32)
        for part, count in rows.items():
            name = f"blk.{index}.attn_{part}.weight"
            tensors[name] = Tensor(name, "F32", (8, count), 0, 32 * count)
    try:
        spec = gguf_spec(Header(metadata, tensors), "m", "m.gguf")
    except SpecError as error:
        message = str(error)
    else:
        assert 0 < len(spec.layers) <= 4 * 64
        sizes = [spec.kv_bytes(tokens, get_format("bf16")) for tokens in (0, 1, 7, 64)]
        assert sizes == sorted(sizes)
        assert spec.stored_weight_bytes == sum(tensor.bytes for tensor in tensors.values())
        return
    assert message.isprintable()
    assert len(message) < 400
