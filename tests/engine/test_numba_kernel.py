"""The compiled kernel against a softmax in float64, and against the reference kernel's bytes."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.core.step import Row, StepPlan
from kvhouse.engine import kernels
from kvhouse.engine.kernels.choose import make_kernel
from kvhouse.engine.kernels.cpu import compiled, layer, threads
from kvhouse.engine.kernels.cpu.kernel import NumbaKernel
from kvhouse.engine.kernels.cpu.layer import pair_kind
from kvhouse.engine.kernels.cpu.linear_ir import SPLIT_PAIRS
from kvhouse.engine.kernels.reference import ReferenceKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.packed import PackedStep, pack
from kvhouse.errors import KvhouseError
from kvhouse.formats import FORMATS
from kvhouse.layout import KVLayout, PoolSize
from kvhouse.spec import FullAttention, ModelSpec, SlidingAttention
from kvhouse.spec.layers import ChunkedAttention, LatentAttention, Layer

# Query heads, KV heads, key and value sizes.
SHAPES = [(9, 3, 64, 64), (4, 4, 32, 64), (8, 1, 64, 32), (6, 2, 96, 32), (40, 1, 16, 32)]


def pool(
    layer: Layer, kv_format: str, block_size: int, blocks: int, dtype: str = "float32", **options
) -> KVTensors:
    """One layer's pages; every byte is 255, which is NaN in all floats, scales among them."""
    model = ModelSpec("test", "TestForCausalLM", (layer,), 64, 100, 10**6, 0, 0, dtype)
    layout = KVLayout.of(model, kv_format, block_size)
    kv = KVTensors(model, layout, PoolSize(blocks), **options)
    for block in range(blocks):
        kv.write_block(block, torch.full((layout.block_bytes,), 255, dtype=torch.uint8))
    return kv


class Requests:
    """Requests that grow on one layer's pages.

    Args:
        kv: The pages.
        seed: Of the order of the pages.
    """

    def __init__(self, kv: KVTensors, seed: int) -> None:
        self.kv = kv
        self.pages = np.random.default_rng(seed).permutation(kv.size.blocks).tolist()
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step(self, counts: dict[int, int]) -> PackedStep:
        """A step with so many new tokens of each request; blocks that no token needs are gone."""
        layer = self.kv.layers[0]
        rows = []
        for request, count in counts.items():
            first = self.lengths.get(request, 0)
            end = first + count
            table = self.tables.setdefault(request, [])
            table += [self.pages.pop() for _ in range(-(-end // layer.block_size) - len(table))]
            start = layer.reach.first(first) // layer.block_size
            rows.append(Row(request, first, count, True, (tuple(table[start:]),), (start,)))
            self.lengths[request] = end
        known = {request: [0] * self.lengths[request] for request in counts}
        return pack(StepPlan(0, tuple(rows), (), (), ()), known)

    def kept(self, request: int, kind: int) -> np.ndarray:
        """What the pages hold of a request, float64 ``[tokens, heads, size]``."""
        layer = self.kv.layers[0]
        positions = torch.arange(self.lengths[request])
        blocks = torch.tensor(self.tables[request])[positions // layer.block_size]
        read = layer.vectors[kind].read(blocks, positions % layer.block_size)
        return read.numpy().astype(np.float64)


def plain(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    position: int,
    scale: float,
    *,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Attention of one token, ``[heads, size]``, head by head in float64."""
    first = 0
    if window:
        first = max(0, position - window + 1)
    if chunk:
        first = position // chunk * chunk
    shared = len(query) // key.shape[1]
    out = []
    for head, q in enumerate(query.astype(np.float64)):
        k, v = (
            key[first : position + 1, head // shared],
            value[first : position + 1, head // shared],
        )
        scores = k @ q * scale
        if softcap:
            scores = np.tanh(scores / softcap) * softcap
        if sinks is not None:
            scores = np.append(scores, sinks[head])
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        out.append(weights[: len(v)] @ v)
    return np.array(out)


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def layer_of(shape, window, chunk):
    if window:
        return SlidingAttention(*shape, window=window)
    return ChunkedAttention(*shape, chunk=chunk) if chunk else FullAttention(*shape)


def inputs(rng, tokens, shape, dtype=torch.float32):
    """Queries, keys and values, as transformers passes them: heads first, then turned."""
    heads, kv_heads, key_dim, value_dim = shape
    return [
        torch.tensor(rng.standard_normal((1, count, tokens, size)), dtype=dtype)[0].transpose(0, 1)
        for count, size in ((heads, key_dim), (kv_heads, key_dim), (kv_heads, value_dim))
    ]


def worst(requests, packed, query, out, scale, **options):
    """The largest error of any output, relative to the largest value of its request."""
    error = 0.0
    for got, want, _ in _compared(requests, packed, query, out, scale, **options):
        error = max(error, np.abs(got - want).max() / np.abs(want).max())
    return error


def most_rounded(requests, packed, query, out, scale, **options):
    """The largest error beside what rounding an output and both factors of its terms allows.

    Each is rounded by up to 2**-8 of it; the terms may cancel, what is rounded away of them not.
    """
    return max(
        (np.abs(got - want) / (2**-8 * (2 * unsigned + np.abs(want)) + 5e-6)).max()
        for got, want, unsigned in _compared(requests, packed, query, out, scale, **options)
    )


def _compared(requests, packed, query, out, scale, **options):
    """Each output, what it should be, and what it would be of values without their signs."""
    for row in packed.rows:
        key, value = (requests.kept(row.row.request, kind) for kind in (0, 1))
        for token in range(row.start, row.stop):
            position = row.row.first + token - row.start
            asked = query[token].numpy()
            want = plain(asked, key, value, position, scale, **options)
            unsigned = plain(asked, key, np.abs(value), position, scale, **options)
            yield out[token].numpy().astype(np.float64), want, unsigned


@given(data=st.data())
@settings(max_examples=80, deadline=None)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_attends_as_a_plain_softmax(kv_format, data):
    shape = data.draw(st.sampled_from(SHAPES))
    window, chunk = data.draw(st.sampled_from([(None, None), (1, None), (21, None), (None, 24)]))
    softcap = data.draw(st.sampled_from([None, 1.5, 30.0]))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    sinks = rng.standard_normal(shape[0]) if data.draw(st.booleans()) else None
    kv = pool(layer_of(shape, window, chunk), kv_format, 16, 40)
    kernel, requests = NumbaKernel(kv), Requests(kv, seed)
    counts = st.dictionaries(st.integers(0, 3), st.sampled_from([1, 1, 2, 19, 50]), min_size=1)
    for step in data.draw(st.lists(counts, min_size=1, max_size=3)):
        packed = requests.step(step)
        query, key, value = inputs(rng, sum(step.values()), shape)
        got = kernel.prepare(packed).attend(
            0,
            query,
            key,
            value,
            0.3,
            softcap=softcap,
            sinks=None if sinks is None else torch.tensor(sinks),
        )
        options = {"window": window, "chunk": chunk, "softcap": softcap, "sinks": sinks}
        assert worst(requests, packed, query, got, 0.3, **options) < 5e-6


@pytest.mark.parametrize(("block_size", "shape"), [(4, (6, 2, 16, 48)), (32, (6, 2, 48, 16))])
def test_blocks_and_heads_of_other_sizes(block_size, shape):
    rng = np.random.default_rng(5)
    kv = pool(FullAttention(*shape), "bf16", block_size, 60)
    kernel, requests = NumbaKernel(kv), Requests(kv, 5)
    for step in ({0: 37, 1: 1, 2: 70}, {1: 1, 0: 1, 2: 40}, {0: 1, 1: 1, 2: 1}):
        packed = requests.step(step)
        query, key, value = inputs(rng, sum(step.values()), shape)
        got = kernel.prepare(packed).attend(0, query, key, value, 0.3)
        assert worst(requests, packed, query, got, 0.3) < 5e-6


@pytest.mark.parametrize("sinks", [None, torch.linspace(-3, 3, 4)])
@pytest.mark.usefixtures("two_threads")
def test_long_rows_are_split_and_merged(sinks):
    """And whichever thread merges them, the bits are the same."""
    shape, rng = (4, 2, 64, 64), np.random.default_rng(3)
    kv = pool(SlidingAttention(*shape, window=2500), "bf16", 16, 220)
    kernel, requests = NumbaKernel(kv), Requests(kv, 3)
    requests.step({0: 3001})
    query, key, value = inputs(rng, 3001, shape)
    kv.layers[0].vectors[0].write(*everywhere(requests, 0), key)
    kv.layers[0].vectors[1].write(*everywhere(requests, 0), value)
    packed = requests.step({0: 1, 1: 2})
    query, key, value = inputs(rng, 3, shape)
    step = kernel.prepare(packed)
    got = [step.attend(0, query, key, value, 0.2, sinks=sinks) for _ in range(20)]
    assert all(torch.equal(got[0], other) for other in got)
    own = None if sinks is None else sinks.numpy()
    assert worst(requests, packed, query, got[0], 0.2, window=2500, sinks=own) < 5e-6


def everywhere(requests, request):
    """Blocks and offsets of a request's tokens."""
    positions = torch.arange(requests.lengths[request])
    return torch.tensor(requests.tables[request])[positions // 16], positions % 16


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_writes_the_reference_kernels_bits(kv_format, dtype):
    """Zeros, the smallest and the largest, and what is not finite among them."""
    shape, rng = (4, 2, 64, 32), np.random.default_rng(4)
    pools = [pool(FullAttention(*shape), kv_format, 16, 10) for _ in range(2)]
    query, key, value = inputs(rng, 100, shape, dtype)
    for tensor in (key, value):
        tensor *= 10.0 ** torch.linspace(-3, 3, 100, dtype=dtype)[:, None, None]
        tensor[3] = 0
        tensor[4] *= 1e-41
        tensor[5] *= 1e4 if dtype == torch.float16 else 1e37
        tensor[6, 0, 17], tensor[7, 1, 2] = torch.nan, -torch.inf
    for kv, kernel in zip(pools, (NumbaKernel, ReferenceKernel), strict=True):
        packed = Requests(kv, 4).step({0: 100})
        kernel(kv).prepare(packed).attend(0, query, key, value, 0.3)
    for mine, want in zip(*(kv.layers[0].vectors for kv in pools), strict=True):
        assert_same(mine.data, want.data)
        if mine.scales is not None:
            assert_same(mine.scales, want.scales)


def assert_same(got, want):
    """Bit for bit, but for which NaN a NaN is."""
    torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=0, equal_nan=True)


@given(
    seed=st.integers(0, 2**32 - 1), levels=st.sampled_from([2, 5, 40, 10**6]), rotated=st.booleans()
)
@settings(max_examples=40, deadline=None)
def test_writes_int4_as_the_reference_does_where_scales_tie(seed, levels, rotated):
    """Few different elements: opposite peaks, and scales with equal errors."""
    shape, rng = (2, 2, 64, 64), np.random.default_rng(seed)
    pools = [pool(FullAttention(*shape), "int4", 16, 4, rotate=rotated) for _ in range(2)]
    query, *vectors = inputs(rng, 64, shape)
    key, value = (
        (tensor * levels / 4).round() / levels * 10.0 ** torch.linspace(-44, 38, 64)[:, None, None]
        for tensor in vectors
    )
    for kv, kernel in zip(pools, (NumbaKernel, ReferenceKernel), strict=True):
        kernel(kv).prepare(Requests(kv, 4).step({0: 64})).attend(0, query, key, value, 0.3)
    for mine, want in zip(*(kv.layers[0].vectors for kv in pools), strict=True):
        assert torch.equal(mine.data, want.data)
        assert torch.equal(mine.scales.view(torch.int16), want.scales.view(torch.int16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_answers_in_the_dtype_of_the_query(dtype):
    shape, rng = (9, 3, 64, 64), np.random.default_rng(6)
    kv = pool(FullAttention(*shape), "fp32", 16, 10)
    requests = Requests(kv, 6)
    packed = requests.step({0: 40, 1: 7})
    query, key, value = inputs(rng, 47, shape, dtype)
    got = NumbaKernel(kv).prepare(packed).attend(0, query, key, value, 0.3)
    assert got.dtype == dtype
    bound = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(dtype, 0.0)
    assert worst(requests, packed, query.float(), got.float(), 0.3) < bound + 5e-6


@given(data=st.data())
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_prompts_are_multiplied_in_pairs_of_bfloat16(kv_format, data):
    """Weights, dequantised values and the output are rounded, each by up to 2**-8 of it.

    Of int4 keys and rotated queries are rounded as well, where a step of the format is a fifteenth
    of the range.
    """
    kind = data.draw(st.sampled_from([pair_kind() or SPLIT_PAIRS, SPLIT_PAIRS]))
    shape = data.draw(st.sampled_from([*SHAPES, (4, 2, 64, 128)]))
    window, chunk = data.draw(st.sampled_from([(None, None), (21, None), (None, 24)]))
    softcap = data.draw(st.sampled_from([None, 1.5]))
    block_size = data.draw(st.sampled_from([16, 32, 96, 128, 8192]))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    sinks = rng.standard_normal(shape[0]) if data.draw(st.booleans()) else None
    blocks = 6 + 1000 // block_size
    kv = pool(layer_of(shape, window, chunk), kv_format, block_size, blocks, "bfloat16")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layer, "pair_kind", lambda: kind)
        kernel, requests = NumbaKernel(kv), Requests(kv, seed)
    assert kernel.layers[0].way(1, alone=False).in_pairs
    counts = st.dictionaries(st.integers(0, 2), st.sampled_from([1, 2, 19, 150]), min_size=1)
    for step in data.draw(st.lists(counts, min_size=1, max_size=2)):
        packed = requests.step(step)
        query, key, value = inputs(rng, sum(step.values()), shape, torch.bfloat16)
        own = None if sinks is None else torch.tensor(sinks)
        options = {"window": window, "chunk": chunk, "softcap": softcap}
        got = kernel.prepare(packed).attend(0, query, key, value, 0.3, softcap=softcap, sinks=own)
        compared = requests, packed, query.float(), got.float(), 0.3
        if kv_format == "int4":
            assert worst(*compared, sinks=sinks, **options) < 2**-5
        else:
            assert most_rounded(*compared, sinks=sinks, **options) < 1.01


def test_which_prompts_are_multiplied_in_pairs():
    """Where the processor can, and blocks and values fill panels; never what is float32."""
    capable = pair_kind() is not None
    assert capable == compiled.has_feature("avx512bf16")
    for block_size, value_size, fits in ((16, 64, True), (4, 48, False), (16, 16, False)):
        kv = pool(FullAttention(4, 2, 64, value_size), "bf16", block_size, 2, "bfloat16")
        own = NumbaKernel(kv).layers[0]
        assert own.way(1, alone=False).in_pairs == (fits and capable)
        assert not own.way(1, alone=True).in_pairs
        assert not own.way(0, alone=False).in_pairs
    other = NumbaKernel(pool(FullAttention(4, 2, 64, 64), "bf16", 16, 2))
    assert other.layers[0].pairs is None


def test_a_batch_of_rows_need_not_be_one_sequence():
    """Some models take decoding rows as a batch: ids ``[rows, 1]``, and the same pack."""
    shape, rng = (9, 3, 64, 64), np.random.default_rng(11)
    kv = pool(FullAttention(*shape), "fp32", 16, 10)
    requests = Requests(kv, 11)
    packed = requests.step({0: 1, 1: 1, 2: 1})
    turned = replace(packed, input_ids=packed.input_ids.T, position_ids=packed.position_ids.T)
    query, key, value = inputs(rng, 3, shape)
    got = NumbaKernel(kv).prepare(turned).attend(0, query, key, value, 0.3)
    assert worst(requests, packed, query, got, 0.3) < 5e-6


def test_a_layer_may_read_what_another_wrote():
    shape, rng = (9, 3, 64, 64), np.random.default_rng(7)
    kv = pool(FullAttention(*shape), "fp32", 16, 10)
    step = NumbaKernel(kv).prepare(Requests(kv, 7).step({0: 40}))
    query, key, value = inputs(rng, 40, shape)
    first = step.attend(0, query, key, value, 0.3)
    assert torch.equal(step.attend(0, query, None, None, 0.3), first)


@pytest.mark.parametrize("kv_format", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("heads", [3, 70])
def test_latents_are_keys_and_values(kv_format, heads):
    rng = np.random.default_rng(8)
    kv = pool(LatentAttention(heads, 96, 32), kv_format, 16, 40)
    kernel, requests = NumbaKernel(kv), Requests(kv, 8)
    for counts in ({0: 33, 1: 1}, {0: 1, 1: 30, 2: 5}):
        packed = requests.step(counts)
        tokens = sum(counts.values())
        query = torch.tensor(rng.standard_normal((tokens, heads, 128)), dtype=torch.float32)
        latent, rotary = (
            torch.tensor(rng.standard_normal((tokens, size)), dtype=torch.float32)
            for size in (96, 32)
        )
        got = kernel.prepare(packed).attend_latent(0, query, latent, rotary, 0.1)
        for row in packed.rows:
            kept = requests.kept(row.row.request, 0)
            key = np.concatenate((kept, requests.kept(row.row.request, 1)), axis=-1)
            for token in range(row.start, row.stop):
                position = row.row.first + token - row.start
                want = plain(query[token].numpy(), key, kept, position, 0.1)
                assert np.abs(got[token].numpy() - want).max() < 5e-6 * np.abs(want).max()


def test_what_it_cannot_do_is_left_to_the_reference():
    assert isinstance(make_kernel(pool(FullAttention(4, 2, 64, 64), "bf16", 16, 2)), NumbaKernel)
    odd = pool(FullAttention(4, 2, 20, 64), "bf16", 16, 2)
    kernel = make_kernel(odd)
    assert kernel.about == (
        "reference, in plain torch: vectors of 20 elements in bf16 are no multiple of 16"
    )
    with pytest.raises(KvhouseError, match="cannot serve this pool: vectors of 20 elements"):
        make_kernel(odd, "numba")
    assert (
        "of 80 elements in int4"
        in make_kernel(pool(FullAttention(1, 1, 80, 32), "int4", 16, 2)).about
    )
    asked = make_kernel(pool(FullAttention(4, 2, 64, 64), "bf16", 16, 2), "reference")
    assert asked.about == "reference, in plain torch: as asked"


def test_a_smaller_processor(tmp_path):
    """AVX2 and no AVX-512, in a process of its own: all that was compiled is for this one."""
    chosen = "+avx2,+avx,+fma,+f16c,+bmi,+bmi2,+lzcnt,+popcnt,+sse4.2"
    done = subprocess.run(
        [sys.executable, "-c", SMALLER, str(Path(__file__).parent)],
        env=os.environ
        | {
            "NUMBA_CPU_NAME": "haswell",
            "NUMBA_CPU_FEATURES": chosen,
            "NUMBA_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["4", "right"]


#: Prints the rows whose sums fit, then whether int4, of which most is done in registers, is right.
SMALLER = """
import sys; sys.path.insert(0, sys.argv[1])
from test_numba_kernel import *
print(compiled.most_rows())
shape, rng = (9, 3, 64, 64), np.random.default_rng(12)
query, key, value = inputs(rng, 40, shape)
kv, other = (pool(FullAttention(*shape), "int4", 16, 4) for _ in range(2))
requests = Requests(kv, 12)
packed = requests.step({0: 40})
got = NumbaKernel(kv).prepare(packed).attend(0, query, key, value, 0.3)
ReferenceKernel(other, "").prepare(packed).attend(0, query, key, value, 0.3)
assert worst(requests, packed, query, got, 0.3) < 5e-6
for mine, want in zip(kv.layers[0].vectors, other.layers[0].vectors):
    assert_same(mine.data, want.data)
print("right")
"""


def test_a_processor_that_converts_no_float16(monkeypatch):
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+avx2,+fma")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    kernel = make_kernel(pool(FullAttention(4, 2, 64, 64), "bf16", 16, 2))
    assert kernel.about == "reference, in plain torch: this processor converts no float16"


def test_without_torchs_runtime_python_has_threads(monkeypatch):
    shape, rng = (9, 3, 64, 64), np.random.default_rng(9)
    kv = pool(FullAttention(*shape), "fp32", 16, 60)
    step = NumbaKernel(kv).prepare(Requests(kv, 9).step({0: 500, 1: 200}))
    query, key, value = inputs(rng, 700, shape)
    alone = step.attend(0, query, key, value, 0.3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(threads, "_team", lambda: threads._in_a_pool)
    step = NumbaKernel(kv).prepare(Requests(kv, 9).step({0: 500, 1: 200}))
    assert torch.equal(step.attend(0, query, key, value, 0.3), alone)


def test_says_that_it_compiles_and_only_then(monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def nothing(call):
        pass

    for said in (True, False):
        assert compiled._compiled(nothing, "nothing")
        assert capfd.readouterr().err.startswith("kvhouse: compiled nothing in ") == said


def test_where_nothing_can_be_cached_it_compiles_each_time(capfd):
    made = {}
    exec("def nothing(call):\n    pass", made)  # of a function in no file there is no cache
    for _ in range(2):
        assert compiled._compiled(made["nothing"], "nothing")
        assert "compiled nothing" in capfd.readouterr().err


@pytest.mark.parametrize("ending", ["nbc", "nbi"])
def test_a_damaged_cache_is_written_anew(ending, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def nothing(call):
        pass

    compiled._compiled(nothing, "nothing")
    files = list(tmp_path.rglob(f"*.{ending}"))
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:10])
    assert compiled._compiled(nothing, "nothing")
    assert capfd.readouterr().err.count("compiled nothing") == 2
    assert compiled._compiled(nothing, "nothing")
    assert capfd.readouterr().err == ""


def test_without_numba_the_reference_serves_and_says_so(monkeypatch, capsys):
    """Numba is not installed, or not made for this machine's numpy."""
    for module in [name for name in sys.modules if name.startswith("kvhouse.engine.kernels.cpu")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(kernels, "cpu", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    kv = pool(FullAttention(2, 2, 16, 16), "fp32", 4, 2)
    assert isinstance(make_kernel(kv), ReferenceKernel)
    assert re.fullmatch(r"kvhouse: attention is slow in plain torch: .*\n", capsys.readouterr().err)
    with pytest.raises(KvhouseError, match="Numba kernel cannot serve this pool: Numba cannot be"):
        make_kernel(kv, "numba")
