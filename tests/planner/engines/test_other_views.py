"""SGLang, llama.cpp, whisper.cpp, pools and static caches: properties, and sums by other ways."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines import ENGINES, view
from kvhouse.planner.engines.kv_dtypes import LLAMA_CPP, SGLANG, kv_type
from kvhouse.planner.engines.whisper_cpp import WhisperOptions, WhisperShape, whisper_cpp
from kvhouse.spec import catalogue, load
from kvhouse.spec.layers import FullAttention, SlidingAttention

GIB, MIB = 2**30, 2**20


def seen(engine, name, **options):
    try:
        return view(engine, load(name), **options)
    except UnsupportedModel:
        return None


def plain(name):
    return all(type(part) is FullAttention for layer in load(name).layers for part in layer.parts)


#: What an engine does with such layers is not known, or it has none of them.
REFUSED = {
    *((pool, "qwen3.5-27b") for pool in ("tensorrt-llm", "tgi", "xinfer", "pegainfer")),
    *((pool, "gemma-3-27b") for pool in ("tensorrt-llm", "tgi", "xinfer", "pegainfer")),
    *((slots, "qwen3.5-27b") for slots in ("transformers-static", "candle")),
    *((slots, "qwen3.5-27b") for slots in ("ggml", "ggml-falcon")),
    ("jan", "deepseek-v3"),
    ("vllm-v0", "qwen3.5-27b"),
}
PLAIN = [name for name in catalogue() if plain(name)]


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("name", ["llama-3-8b", "qwen3.5-27b", "gemma-3-27b", "deepseek-v3"])
def test_every_engine_answers_or_refuses_by_name(engine, name):
    lengths = {"max_model_len": 4096, "n_ctx": 4096, "max_num_batched_tokens": 2048}
    known = ENGINES[engine].option_names
    options = {key: value for key, value in lengths.items() if key in known}
    if (engine, name) in REFUSED:
        with pytest.raises(UnsupportedModel, match=name):
            view(engine, load(name), **options)
        return
    found = view(engine, load(name), **options)
    assert found.needed_bytes(4096) >= found.needed_bytes(1) >= 0
    assert found.groups
    assert found.kv_bytes_per_token >= 0
    assert sum(group.layers for group in found.groups) > 0


@given(st.sampled_from(PLAIN), st.integers(1, 2**20), st.sampled_from([1, 16, 64]))
@settings(max_examples=60, deadline=None)
def test_sglang_fills_its_memory(name, kib, page):
    available = kib * 2**16
    found = seen("sglang", name, available_bytes=available, page_size=page, context_length=1024)
    cell = found.kv_bytes_per_token
    assert found.kv_tokens % page == 0
    assert found.kv_tokens * cell <= available < (found.kv_tokens + page) * cell
    rows = found.kv_tokens + page
    assert found.figure("kv_bytes") == rows * cell


def test_sglang_splits_memory_between_pools():
    # Pools: full = mem / (F * n_full + r * S * n_swa), swa = r * full, in whole pages.
    found = seen("sglang", "gemma-3-27b", available_bytes=10 * GIB, page_size=64)
    per_layer = 16 * 128 * 2 * 2
    full = int(10 * GIB / (per_layer * 10 + 0.8 * per_layer * 52)) // 64 * 64
    assert found.kv_tokens == full
    assert found.figure("swa_tokens") == int(full * 0.8) // 64 * 64
    assert found.figure("kv_bytes") == per_layer * (
        10 * (full + 64) + 52 * (found.figure("swa_tokens") + 64)
    )


def test_mimo_v2_flash_on_sglang():
    # SGLang PR 18039, tp 4, pages of 64: 375,360 tokens in full layers and 300,288 in windows,
    # whose K takes 8.38 and V 5.59 GiB.
    spec = load("mimo-v2-flash")
    found = view("sglang", spec, tp=4, page_size=64, tokens=375_360)
    assert found.figure("swa_tokens") == 300_288
    sizes = [found.figure(f"swa_{side}_bytes") / GIB for side in "kv"]
    assert [round(size, 2) for size in sizes] == [8.38, 5.59]


def test_sglang_gives_states_their_share():
    found = seen("sglang", "qwen3-next-80b-a3b", available_bytes=19 * GIB, mamba_ratio=0.9)
    # 36 layers of 32 heads of 128 * 128 float32, and 8,192 channels of 3 columns in 16 bits.
    state = 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert found.figure("state_slots") == int(19 * GIB * 0.9 / 1.9) // state
    assert found.kv_tokens == (19 * GIB - int(19 * GIB * 0.9 / 1.9)) // (12 * 2 * 256 * 2 * 2)


def test_sglang_budget():
    found = seen(
        "sglang",
        "llama-3-8b",
        free_before_bytes=80 * GIB,
        free_after_bytes=64 * GIB,
        mem_fraction_static=0.75,
    )
    assert found.kv_tokens == 44 * GIB // 131_072


@given(
    st.sampled_from(sorted(catalogue())),
    st.integers(1, 2**15),
    st.sampled_from(sorted(LLAMA_CPP)),
)
@settings(max_examples=60, deadline=None)
def test_llama_cpp_adds_up(name, context, kind):
    found = seen("llama.cpp", name, n_ctx=context, type_k=kind, type_v=kind)
    assume(found is not None)
    figures = dict(found.figures)
    assert figures["k_bytes"] + figures["v_bytes"] == figures["kv_bytes"]
    whole = figures["kv_bytes"] + figures.get("recurrent_bytes", 0)
    assert found.needed_bytes(1) == found.needed_bytes(context) == whole
    assert whole == sum(group.bytes_for(1) for group in found.groups)
    assert figures["n_ctx"] % 256 == 0
    assert context <= figures["n_ctx"] < context + 256


def test_llama_cpp_windows():
    # pad256(min(n_ctx, n_swa * (unified ? n_seq : 1) + n_ubatch)), and n_ctx with swa_full.
    cells = {}
    for unified, full in ((False, False), (True, False), (False, True)):
        found = seen(
            "llama.cpp", "gemma-3-27b", n_ctx=32768, n_seq_max=4, unified=unified, swa_full=full
        )
        cells[unified, full] = (found.figure("non_swa_cells"), found.figure("swa_cells"))
    assert cells == {
        (False, False): (8192, 1536),
        (True, False): (32768, 4608),
        (False, True): (8192, 8192),
    }
    old = seen("llama.cpp", "gemma-3-27b", version="2025.2", n_ctx=8192)
    assert old.figure("non_swa_layers") == 62


def test_llama_cpp_leaves_windows_unquantised_since_april_2026():
    old, new = (
        seen("llama.cpp", "gemma-3-27b", version=version, n_ctx=8192, type_k="q8_0", type_v="q8_0")
        for version in ("2026.3", "2026.4")
    )
    assert old.figure("non_swa_kv_bytes") == new.figure("non_swa_kv_bytes")
    assert old.figure("swa_kv_bytes") * 32 == new.figure("swa_kv_bytes") * 17


def test_llama_cpp_streams_hold_what_one_buffer_does():
    one = seen("llama.cpp", "llama-3-8b", n_ctx=8192, n_seq_max=4, unified=True)
    four = seen("llama.cpp", "llama-3-8b", n_ctx=8192, n_seq_max=4)
    assert one.needed_bytes() == four.needed_bytes() == 1024 * MIB
    assert (one.max_model_len, four.max_model_len) == (8192, 2048)


@pytest.mark.parametrize(
    ("name", "elements", "size"),
    [("q8_0", 128, 136), ("q4_0", 128, 72), ("f16", 576, 1152), ("q8_0", 33, 68)],
)
def test_ggml_types(name, elements, size):
    assert kv_type(LLAMA_CPP, name, "llama.cpp").vector_bytes(elements) == size
    assert kv_type(SGLANG, "bf16", "SGLang").vector_bytes(elements) == 2 * elements


@given(st.integers(1, 48), st.integers(1, 2048), st.sampled_from(["2023.7", "2024.6", None]))
def test_whisper_grows_with_its_shape(layers, width, version):
    shape = WhisperShape(n_text_layer=layers, n_text_state=width)
    found = whisper_cpp(shape, WhisperOptions(version=version))
    wider = whisper_cpp(
        WhisperShape(n_text_layer=layers, n_text_state=2 * width), WhisperOptions(version=version)
    )
    assert found.figure("self_bytes") * 2 == wider.figure("self_bytes")
    assert found.figure("cross_bytes") * 2 == wider.figure("cross_bytes")
    cells = found.figure("self_bytes") // (layers * width * 4)
    assert cells == {"2023.7": 448, "2024.6": 3 * 448, None: 512}[version]


def test_tensorrt_llm_rounds_blocks_up():
    # TensorRT-LLM issue 224: the last block counts in part.
    block = 32 * 131_072
    for free, blocks in ((block * 10, 9), (block * 10 + 100, 10), (0, 0)):
        assert seen("tensorrt-llm", "llama-3-8b", free_bytes=free).blocks == blocks


@given(st.sampled_from(PLAIN), st.integers(0, 2**36))
@settings(max_examples=40, deadline=None)
def test_pools_hold_whole_blocks(name, available):
    options = {"available_bytes": available, "max_model_len": 1024}
    tgi, pega = (seen(engine, name, **options) for engine in ("tgi", "pegainfer"))
    assert tgi.kv_tokens == available // tgi.kv_bytes_per_token
    assert pega.kv_tokens == max(0, available // (16 * pega.kv_bytes_per_token) - 1) * 16


@given(st.sampled_from(PLAIN), st.integers(1, 1024), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_static_caches_hold_every_slot(name, length, batch):
    found = seen("transformers-static", name, max_model_len=length, batch=batch, dtype="float32")
    spec = load(name)
    # Falcon with several KV heads repeats its keys for every query head before it stores them.
    repeats = spec.architecture == "FalconForCausalLM"
    expected = sum(
        (layer.query_heads if repeats and layer.kv_heads > 1 else layer.kv_heads)
        * (layer.key_dim + layer.value_dim)
        for layer in spec.layers
        if isinstance(layer, FullAttention)
    )
    assert found.needed_bytes() == expected * 4 * length * batch
    if spec.architecture == "FalconForCausalLM":  # its class caches keys after repeating them
        return
    dynamic = seen("transformers", name, max_model_len=length, batch=batch, dtype="float32")
    assert dynamic.needed_bytes(length) == found.needed_bytes()


def test_static_windows_and_estimates_that_ignore_them():
    # Gemma-3-27B at 4,096 tokens in 16 bits is 771,751,936 B; taken as full, 62 layers all alike.
    static = seen("transformers-static", "gemma-3-27b", max_model_len=4096)
    assert static.needed_bytes() == 771_751_936
    estimate = seen("jan", "gemma-3-27b", max_model_len=4096)
    assert estimate.needed_bytes() == 62 * 16 * 256 * 2 * 4096
    windows = [one for one in load("gemma-3-27b").layers if isinstance(one, SlidingAttention)]
    assert len(windows) == 52


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("llama.cpp", {"n_ctx": 0}),
        ("llama.cpp", {"type_k": "q3_k"}),
        ("sglang", {"kv_dtype": "q8_0"}),
        ("tensorrt-llm", {"block_size": 0}),
        ("candle", {"dtype": "int3"}),
    ],
)
def test_refusals(engine, options):
    with pytest.raises(KvhouseError):
        view(engine, load("llama-3-8b"), **options)
    with pytest.raises(KvhouseError):
        whisper_cpp(WhisperShape(n_text_layer=0, n_text_state=1), WhisperOptions())
