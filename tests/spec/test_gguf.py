"""GGUF files: SmolLM2's own and small ones of each architecture."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec import FullAttention, find_gguf, load
from kvhouse.spec.gguf_header import read_header
from kvhouse.spec.hf_config import read_config

Tiny = Callable[..., dict[str, object]]
Make = Callable[..., Path]
Split = Callable[..., list[Path]]

# The sizes that the fixture ``make_gguf`` writes.
HIDDEN, INNER, HEADS, KV_HEADS, VOCAB, LAYERS = 64, 96, 4, 2, 50, 2
CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}


def test_smollm2_is_its_catalogue_entry() -> None:
    spec, known = load(find_gguf("smollm2")), load("smollm2")
    assert spec.layers == known.layers == (FullAttention(9, 3, 64, 64),) * 30
    for field in ("architecture", "hidden_size", "vocab_size", "max_length"):
        assert getattr(spec, field) == getattr(known, field)
    # 134,515,008 is also what the checkpoint's model card says.
    assert spec.parameters == known.parameters == 134_515_008
    assert spec.matmul_parameters == known.matmul_parameters
    # By ggml's block sizes: the embedding in Q8_0 (34 bytes for 32 elements), the layers'
    # matrices in Q4_1 (20 for 32), norms in F32.
    embedding, matrices, norms = 49152 * 576, 30 * (2 * 576 * 768 + 3 * 576 * 1536), 61 * 576
    assert embedding + matrices + norms == 134_515_008
    stored = embedding // 32 * 34 + matrices // 32 * 20 + norms * 4
    assert spec.stored_weight_bytes == spec.weight_bytes() == stored
    assert spec.weight_bytes("bfloat16") == known.weight_bytes()


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize("head_dim", [16, 8])
@pytest.mark.parametrize("tied", [True, False])
def test_each_architecture_against_its_config(
    architecture: str, head_dim: int, tied: bool, make_gguf: Make, tiny: Tiny
) -> None:
    config = tiny(
        architecture,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        vocab_size=VOCAB,
        head_dim=head_dim,
        tie_word_embeddings=tied,
    )
    wanted = read_config(config, "m", "test")
    spec = load(make_gguf(architecture, head_dim, tied))
    assert spec.layers == wanted.layers
    assert spec.parameters == wanted.parameters
    assert spec.matmul_parameters == wanted.matmul_parameters
    assert spec.architecture == CLASSES[architecture]
    assert (spec.hidden_size, spec.vocab_size, spec.max_length) == (HIDDEN, VOCAB, 128)
    assert spec.dtype == "float16"


def test_header_is_what_the_gguf_package_reads(make_gguf: Make) -> None:
    path = make_gguf("qwen2")
    header, reader = read_header(path), gguf.GGUFReader(path)
    assert [*header.metadata] == [key for key in reader.fields if not key.startswith("GGUF.")]
    assert [*header.tensors] == [tensor.name for tensor in reader.tensors]
    for theirs in reader.tensors:
        ours = header.tensors[theirs.name]
        assert (ours.type, ours.offset) == (theirs.tensor_type.name, theirs.data_offset)
        assert ours.shape == tuple(theirs.shape.tolist())
        assert (ours.bytes, ours.elements) == (theirs.n_bytes, theirs.n_elements)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"llama__attention__sliding_window": 128}, "only the last 128 tokens"),
        ({"llama__attention__causal": False}, "an encoder"),
        ({"general__type": "adapter"}, "holds 'adapter', not a whole model"),
    ],
)
def test_refused(extra: dict[str, int | str | bool], reason: str, make_gguf: Make) -> None:
    with pytest.raises(UnsupportedModel, match=reason):
        load(make_gguf(**extra))


def test_an_unknown_architecture_is_refused_by_name(make_gguf: Make) -> None:
    with pytest.raises(
        UnsupportedModel, match="architecture 'mamba9' is not supported: nothing is"
    ):
        load(make_gguf("mamba9"))


def test_what_is_off_is_no_reason(make_gguf: Make) -> None:
    extra = {"llama__expert_count": 0, "llama__attention__sliding_window": 0, "split__count": 0}
    assert len(load(make_gguf(**extra)).layers) == LAYERS
    assert len(load(make_gguf(llama__attention__sliding_window=129)).layers) == LAYERS


@pytest.mark.parametrize(
    ("drop", "reason"),
    [
        ("llama.block_count", "field 'llama.block_count' is missing"),
        ("llama.embedding_length", "field 'llama.embedding_length' is missing"),
        ("llama.context_length", "field 'llama.context_length' is missing"),
        ("llama.attention.head_count", "field 'llama.attention.head_count' is missing"),
        # Without it, llama.cpp takes as many KV heads as query heads; the tensors disagree.
        ("llama.attention.head_count_kv", r"32 rows \(attn_k\), .* with 64 rows \(attn_k\)"),
        ("token_embd.weight", "tensor 'token_embd.weight' is missing"),
        ("blk.1.attn_k.weight", r"of layer 1 the attention matrices have 32 rows \(attn_v\); "),
    ],
)
def test_something_is_missing(drop: str, reason: str, make_gguf: Make) -> None:
    with pytest.raises(SpecError, match=reason):
        load(make_gguf(drop=drop))


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"llama__block_count": 4096}, "there are 4096 layers, but there is no tensor of the last"),
        ({"llama__block_count": 2**32 - 1}, "not a whole number from 1 to 4096"),
        ({"llama__block_count": 0}, "'llama.block_count' is 0, not a whole number"),
        ({"llama__block_count": "two"}, "'llama.block_count' is 'two'"),
        ({"llama__attention__head_count": 3}, "does not divide the 3 query heads"),
        ({"llama__attention__key_length": 17}, "of layer 0 the attention matrices have"),
        ({"llama__embedding_length": 128}, "contradicts itself"),
        ({"general__alignment": 3}, "alignment 3 is not a power of two"),
        ({"general__alignment": 2**31}, "tensors do not fit"),
    ],
)
def test_metadata_that_contradicts_the_tensors(
    extra: dict[str, int | str | bool], reason: str, make_gguf: Make
) -> None:
    with pytest.raises(SpecError, match=reason):
        load(make_gguf(**extra))


def test_the_gguf_package_is_not_needed(make_gguf: Make) -> None:
    code = (
        "import sys; sys.modules['gguf'] = sys.modules['numpy'] = None\n"
        "from kvhouse.spec import load; assert len(load(sys.argv[1]).layers) == 2"
    )
    subprocess.run([sys.executable, "-c", code, str(make_gguf())], check=True)


def test_a_split_model_is_read_by_any_part_or_its_directory(make_gguf: Make, split: Split) -> None:
    whole = make_gguf()
    wanted = replace(load(whole), name="m")
    parts = split(whole, 3)
    whole.unlink()
    for source in (*parts, whole.parent):
        assert replace(load(source), name="m") == wanted
    parts[1].unlink()
    with pytest.raises(SpecError, match=r"part-00002-of-00003\.gguf: this part .* is missing"):
        load(parts[0])


def test_parts_that_do_not_belong_together(make_gguf: Make, split: Split) -> None:
    whole = make_gguf()
    parts = split(whole, 3)
    parts[2].write_bytes(parts[1].read_bytes())
    with pytest.raises(SpecError, match=r"part 3: field 'split\.no' is not 2"):
        load(parts[0])
    parts[2].write_bytes(whole.read_bytes())
    with pytest.raises(SpecError, match=r"part 3: field 'split\.count' is not 3"):
        load(parts[0])
    oddly = split(whole, 2, "oddly-{}-{}.gguf")[0]
    with pytest.raises(SpecError, match="one of 2 files of a split model, but not named as such"):
        load(oddly)


def test_a_directory_with_several_models(make_gguf: Make) -> None:
    path = make_gguf()
    assert load(path.parent).layers == load(path).layers
    path.with_name("other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(SpecError, match=r"several models: other\.gguf, tiny\.gguf; name one"):
        load(path.parent)


def test_no_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no model "):
        load(tmp_path / "none.gguf")
    (tmp_path / "dir.gguf").mkdir()
    with pytest.raises(SpecError, match=r"no config\.json and no \.gguf file in this directory"):
        load(tmp_path / "dir.gguf")
