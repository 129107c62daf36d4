"""What a format keeps of a vector: errors within theory, and one vector's harm to no other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.engine.rotation import rotate
from kvhouse.engine.vectors import Vectors, cut
from kvhouse.formats import FORMATS

BLOCKS, BLOCK_SIZE = 3, 4
SCALED = ("fp8", "int8", "int4")
SIZES = st.sampled_from((1, 5, 16, 32, 48, 64, 80))


def empty(kv_format: str, heads: int, size: int, *, across: bool, rotated: bool = False) -> Vectors:
    """Places whose bytes are arbitrary: all ones, which is NaN in every float."""
    fmt = FORMATS[kv_format]
    region = torch.full(
        (BLOCKS, BLOCK_SIZE * heads * fmt.vector_bytes(size)), 255, dtype=torch.uint8
    )
    (vectors,) = cut(
        region, BLOCK_SIZE, ((heads, size),), fmt, across=(0,) if across else (), rotated=rotated
    )
    return vectors


def through(kv_format: str, x: np.ndarray, *, across: bool = True, rotated: bool = False):
    """What is read of ``x``, float32 ``[n, heads, size]`` with n <= 12, after it was written."""
    vectors = empty(kv_format, *x.shape[1:], across=across, rotated=rotated)
    place = torch.randperm(BLOCKS * BLOCK_SIZE, generator=torch.Generator().manual_seed(len(x)))
    blocks, offsets = place[: len(x)] // BLOCK_SIZE, place[: len(x)] % BLOCK_SIZE
    vectors.write(blocks, offsets, torch.from_numpy(x))
    return vectors.read(blocks, offsets).numpy()


@st.composite
def batches(draw):
    """Vectors whose magnitudes differ wildly, from vector to vector and within each."""
    n, heads, size = draw(st.integers(1, 12)), draw(st.integers(1, 3)), draw(SIZES)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.standard_normal((n, heads, size)) * 10.0 ** rng.uniform(-6, 6, (n, heads, 1))
    spread = draw(st.floats(0, 2))
    x *= np.exp(spread * rng.standard_normal((n, heads, size)))
    x[rng.random((n, heads, size)) < draw(st.sampled_from((0, 0.3)))] = 0
    return x.astype(np.float32)


def half_steps(kv_format: str, x: np.ndarray) -> np.ndarray:
    """The largest error that each element may have, in theory.

    A scale is the largest element over the number of levels to one side, and at most one part in
    128 more, as it is rounded up to 8 bits. Rounding then errs by half a step; a float with 3 bits
    after the point by 1/16 of the value, or half its smallest step.
    """
    x = np.abs(x.astype(np.float64))
    peak = x.max(-1, keepdims=True)
    if kv_format == "int8":
        return np.broadcast_to(peak / 127 / 2 * (1 + 2**-7), x.shape)
    return np.maximum(x / 16, peak / 448 * 2**-10 * (1 + 2**-7))


@pytest.mark.parametrize("kv_format", ["fp8", "int8"])
@given(x=batches(), across=st.booleans())
@settings(max_examples=60, deadline=None)
def test_errors_are_within_half_a_step(kv_format, x, across):
    error = np.abs(through(kv_format, x, across=across).astype(np.float64) - x)
    assert np.all(error <= half_steps(kv_format, x) * (1 + 1e-5))


def groups(x: np.ndarray):
    """The runs of at most 32 elements that share a scale of int4, as float64 vectors."""
    for first in range(0, x.shape[-1], 32):
        yield from (
            x[..., first : first + 32].astype(np.float64).reshape(-1, len(x[0, 0, first:][:32]))
        )


def least_error(group: np.ndarray) -> float:
    """The least sum of squared errors of 16 levels of which one end is near the peak."""
    peak = max(group, key=lambda element: (abs(element), element))
    sums = []
    for factor in (0.85, 0.9, 0.95, 1, 1.05, 1.1):
        step = torch.tensor(-peak / 8 * factor, dtype=torch.bfloat16).item()
        sums.append(np.square(group[:, None] - step * np.arange(-8, 8)).min(-1).sum())
    return min(sums)


@given(x=batches(), across=st.booleans())
@settings(max_examples=30, deadline=None)
def test_int4_takes_the_best_of_six_scales(x, across):
    got = through("int4", x, across=across)
    for group, read in zip(groups(x), groups(got), strict=True):
        assert np.square(read - group).sum() <= least_error(group) * (1 + 1e-4)
        assert len(np.unique(read)) <= 16


def test_int4_by_hand():
    """-8 stands for the peak; its opposite, and so +8, has no code and is clipped."""
    x = np.zeros((1, 1, 32), np.float32)
    x[0, 0, :8] = [8, -7, 3, -3, 2, 1, -1, -8]
    x[0, 0, 8:] = np.repeat([4, -4, 5, -5, 6, -6], 4)
    np.testing.assert_array_equal(through("int4", x)[0, 0, :7], x[0, 0, :7])
    assert through("int4", x)[0, 0, 7] == -7
    np.testing.assert_array_equal(
        through("int4", x[..., ::-1].copy()), through("int4", x)[..., ::-1]
    )
    x[0, 0, 0] = 7
    np.testing.assert_array_equal(through("int4", x), x)


@pytest.mark.parametrize(("kv_format", "dtype"), [("fp32", "<f4"), ("fp16", "<f2")])
@given(x=batches())
@settings(max_examples=20, deadline=None)
def test_floats_round_as_numpy_does(kv_format, dtype, x):
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(through(kv_format, x), x.astype(dtype).astype(np.float32))


@given(x=batches())
@settings(max_examples=20, deadline=None)
def test_bfloat16_keeps_eight_bits(x):
    got = through("bf16", x)
    assert np.all(np.abs(got - x) <= np.abs(x) * 2.0**-8)
    assert not np.any(got.view(np.uint32) & 0xFFFF)


@pytest.mark.parametrize("kv_format", SCALED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_vector(kv_format, bad):
    x = np.random.default_rng(0).standard_normal((5, 2, 64)).astype(np.float32)
    clean = through(kv_format, x)
    x[3, 1, 40] = bad
    got = through(kv_format, x)
    group = slice(32, 64) if kv_format == "int4" else slice(None)
    assert np.isnan(got[3, 1, group]).all()
    got[3, 1, group] = clean[3, 1, group]
    np.testing.assert_array_equal(got, clean)


@pytest.mark.parametrize("kv_format", SCALED)
@pytest.mark.parametrize("magnitude", [0.0, 1e-45, 1e-41, 1e-38, 3e38])
def test_the_ends_of_the_range(kv_format, magnitude):
    """The smallest scale is 2^-133; below it there is nothing to round to."""
    signs = np.where(np.arange(64) % 3, 1, -1).astype(np.float32)
    x = np.tile(signs * np.float32(magnitude), (2, 1, 1))
    error = np.abs(through(kv_format, x).astype(np.float64) - x)
    # The opposite of int4's peak is clipped: by a step, which is rounded to 8 bits.
    most = magnitude / 8 * (1 + 2**-5) if kv_format == "int4" else half_steps(kv_format, x)
    assert np.all(error <= np.maximum(most, 2.0**-133))


@pytest.mark.parametrize("size", [64, 128, 80, 96])
def test_a_rotation_is_the_hadamard_matrix(size):
    """Sylvester's: the sign of entry (i, j) is the parity of the bits that i and j share."""
    side = next(n for n in (128, 64, 32, 16) if size % n == 0)
    matrix = np.array([[(-1) ** (i & j).bit_count() for j in range(side)] for i in range(side)])
    x = np.random.default_rng(1).standard_normal((7, size))
    want = (x.reshape(7, -1, side) @ matrix / side**0.5).reshape(7, size)
    got = rotate(torch.tensor(x, dtype=torch.float32))
    np.testing.assert_allclose(got.numpy(), want, atol=1e-5)
    np.testing.assert_allclose(rotate(got).numpy(), x, atol=1e-5)


@given(seed=st.integers(0, 2**32 - 1), size=SIZES)
@settings(max_examples=30, deadline=None)
def test_a_rotation_leaves_products_unchanged(seed, size):
    q, k = torch.randn(2, 9, size, generator=torch.Generator().manual_seed(seed))
    products = q @ k.T
    torch.testing.assert_close(rotate(q) @ rotate(k).T, products, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [64, 128, 96])
def test_a_rotation_spreads_outliers(size):
    """Two channels twenty times the others: each group of 32 would be rounded by the outlier."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((12, 2, size)).astype(np.float32)
    x[..., [3, size - 5]] *= 20
    plain, turned = through("int4", x), through("int4", x, rotated=True)
    errors = [float(np.square(got - x).mean()) for got in (plain, turned)]
    assert errors[1] < errors[0] / 2
