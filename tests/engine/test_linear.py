"""Matrix products, norms and rotary embeddings on the CPU against numpy in float64."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import carray, cfunc, types
from torch import nn

from kvhouse.engine.kernels.cpu import linear
from kvhouse.engine.kernels.cpu.linear import Linear, cannot
from kvhouse.engine.kernels.cpu.program import Program

NAN = float("nan")

#: What a value may be off by when it is rounded to a dtype: half of a unit in the last place.
HALF_UNITS = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}

DTYPES = list(HALF_UNITS)


def matrix(rng: np.random.Generator, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Random values amid NaN: more columns, and more rows before and behind."""
    whole = torch.full((rows + 2, columns + 24), NAN, dtype=dtype)
    part = whole[1:-1, 8 : 8 + columns]
    part.copy_(torch.from_numpy(rng.normal(size=(rows, columns))))
    return part


def double(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


def assert_within(found: torch.Tensor, wanted: np.ndarray, bound: np.ndarray | float) -> None:
    """Each element within ``bound`` before it is rounded to the dtype of ``found``."""
    allowed = bound + HALF_UNITS[found.dtype] * (np.abs(wanted) + bound)
    off = np.abs(double(found) - wanted)
    assert np.all(off <= allowed), f"off by up to {np.max(off / allowed):.2f} times the bound"


def product(x: torch.Tensor, weights: list[torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """The exact product, and what rounding each partial sum to float32 may change of it."""
    joined = np.concatenate([double(weight) for weight in weights])
    sizes = np.abs(double(x)) @ np.abs(joined).T
    return double(x) @ joined.T, sizes * (x.shape[1] + 8) * 2.0**-24


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.dtype, bool, int, int, list[int], int]:
    """Dtype, whether the bfloat16 instruction is missing, tokens, K, rows of weights, seed."""
    dtype, missing = draw(st.sampled_from([(d, m) for d in DTYPES for m in (False, True)]))
    multiple = 64 // dtype.itemsize
    return (
        dtype,
        missing and dtype == torch.bfloat16,
        draw(st.one_of(st.integers(1, 24), st.sampled_from([31, 70, 257, 300]))),
        multiple * draw(st.integers(1, 9)),
        draw(st.lists(st.integers(1, 90), min_size=1, max_size=3)),
        draw(st.integers(0, 2**32 - 1)),
    )


@pytest.fixture
def processor(monkeypatch):
    """Features that the processor is to lack."""

    def lack(*features: str) -> None:
        monkeypatch.setattr(linear, "_has", lambda name: name not in features)

    return lack


class TestProducts:
    @settings(max_examples=150, deadline=None)
    @given(case=cases())
    def test_any_shape(self, case):
        dtype, missing, tokens, inputs, rows, seed = case
        rng = np.random.default_rng(seed)
        weights = [matrix(rng, count, inputs, dtype) for count in rows]
        x = matrix(rng, tokens, inputs, dtype)
        with pytest.MonkeyPatch.context() as patch:
            if missing:
                patch.setattr(linear, "_has", lambda name: name != "avx512bf16")
            found = Linear(weights)(x)
        assert found.dtype == dtype
        assert_within(found, *product(x, weights))

    @settings(max_examples=40, deadline=None)
    @given(case=cases(), out_dtype=st.sampled_from(DTYPES), aliased=st.booleans())
    def test_bias_and_residual_stay_within_the_output(self, case, out_dtype, aliased):
        dtype, _, tokens, inputs, rows, seed = case
        rng = np.random.default_rng(seed)
        weights = [matrix(rng, count, inputs, dtype) for count in rows]
        biases = [matrix(rng, 1, count, dtype)[0] for count in rows]
        biases[0] = None if len(rows) > 1 else biases[0]
        x = matrix(rng, tokens, inputs, dtype)
        out = matrix(rng, tokens, sum(rows), out_dtype)
        residual = out if aliased else matrix(rng, tokens, sum(rows), out_dtype)
        added = double(residual)
        wanted, bound = product(x, weights)
        shift = [np.zeros(n) if b is None else double(b) for b, n in zip(biases, rows, strict=True)]
        whole = out._base
        assert Linear(weights, biases)(x, residual, out) is out
        wanted = wanted + np.concatenate(shift) + added
        assert_within(out, wanted, bound + 2.0**-22 * (np.abs(wanted) + np.abs(added) + 4))
        out.fill_(NAN)
        assert whole.isnan().all()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
    @pytest.mark.parametrize("tokens", [1, 5, 33])
    @pytest.mark.parametrize("biased", [False, True])
    def test_activated_gate(self, dtype, activation, tokens, biased):
        rng = np.random.default_rng(1)
        gate, up = (matrix(rng, 87, 96, dtype) for _ in range(2))
        biases = [matrix(rng, 1, 87, dtype)[0] for _ in range(2)] if biased else []
        x = matrix(rng, tokens, 96, dtype) * 0.3
        found = Linear([gate, up], biases, activation=activation, gated=True)(
            x, out=torch.empty(tokens, 87)
        )
        sides = [product(x, [weight]) for weight in (gate, up)]
        (a, a_bound), (b, b_bound) = (
            (side + (double(biases[i]) if biased else 0), bound + 2.0**-21)
            for i, (side, bound) in enumerate(sides)
        )
        # No activation is steeper than 1.13.
        bound = 1.13 * a_bound * np.abs(b) + np.abs(a) * b_bound + a_bound * b_bound
        wanted = activated(activation, a) * b
        assert_within(found, wanted, bound + 1e-6 * (1 + np.abs(a)) * np.abs(b))

    @pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
    def test_activation_far_from_zero(self, activation):
        points = torch.tensor([0.0, -0.0, 1e-30, -3.0, 5.0, -30.0, 90.0, -1000.0, 1e30, NAN])
        weight = torch.zeros(1, 16)
        weight[0, 0] = 1
        x = torch.zeros(len(points), 16)
        x[:, 0] = points
        found = Linear([weight], activation=activation)(x)[:, 0]
        wanted = activated(activation, double(points))
        assert found[-1].isnan()
        assert_within(found[:-1], wanted[:-1], 1e-6 * np.minimum(np.abs(wanted[:-1]), 9) + 1e-6)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_infinite_and_nan_weights_reach_their_own_outputs_only(self, dtype):
        weight = torch.ones(40, 64, dtype=dtype)
        weight[3, 5], weight[17, 63], weight[39, 0] = NAN, float("inf"), -float("inf")
        for tokens in (1, 2, 7, 40):
            found = Linear([weight])(torch.ones(tokens, 64, dtype=dtype))
            assert found[:, 3].isnan().all()
            assert (found[:, 17] == float("inf")).all()
            assert (found[:, 39] == -float("inf")).all()
            others = [n for n in range(40) if n not in (3, 17, 39)]
            assert (found[:, others] == 64).all()

    def test_weights_are_used_where_they_are(self):
        weight = torch.randn(48, 64)
        both = Linear([weight[:16], weight[16:]])
        weight.copy_(torch.eye(48, 64))
        x = torch.randn(3, 64)
        assert torch.equal(both(x), x[:, :48])

    def test_same_bits_on_any_number_of_threads(self):
        rng = np.random.default_rng(3)
        made = Linear([matrix(rng, 500, 320, torch.bfloat16)])
        before = torch.get_num_threads()
        try:
            for tokens in (1, 9, 50):
                x = matrix(rng, tokens, 320, torch.bfloat16)
                found = []
                for count in (1, 2, 5):
                    torch.set_num_threads(count)
                    found.append(made(x))
                assert all(torch.equal(found[0], other) for other in found)
        finally:
            torch.set_num_threads(before)

    def test_python_threads_do_not_disturb_each_other(self):
        rng = np.random.default_rng(4)
        x = matrix(rng, 20, 128, torch.float32)
        made = [Linear([matrix(rng, 200, 128, torch.float32)]) for _ in range(4)]
        alone = [linear_(x) for linear_ in made]
        with ThreadPoolExecutor(4) as pool:
            for _ in range(20):
                together = list(pool.map(lambda linear_: linear_(x), made))
                assert all(map(torch.equal, alone, together))

    def test_no_tokens(self):
        assert Linear([torch.ones(8, 16)])(torch.empty(0, 16)).shape == (0, 8)

    def test_input_of_another_dtype_or_order_is_taken_as_it_is_meant(self):
        weight = torch.randn(20, 32).bfloat16()
        x = torch.randn(32, 3).bfloat16().float().T
        assert torch.equal(Linear([weight])(x), Linear([weight])(x.bfloat16().contiguous()).float())

    @pytest.mark.parametrize(
        ("x", "out"), [((3, 32), (3, 8)), ((3, 16), (3, 9)), ((3, 16), (2, 8))]
    )
    def test_wrong_shapes_are_refused(self, x, out):
        with pytest.raises(ValueError, match="are meant"):
            Linear([torch.ones(8, 16)])(torch.ones(x), out=torch.ones(out))


class TestRefusals:
    @pytest.mark.parametrize(
        ("weights", "reason"),
        [
            ([torch.ones(8, 17)], "17 inputs in torch.float32 are no multiple of 64 bytes"),
            ([torch.ones(8, 16).bfloat16()], "16 inputs in torch.bfloat16 are no multiple"),
            ([torch.ones(8, 16).half()], "a weight is float16"),
            ([torch.ones(8, 32), torch.ones(8, 32).bfloat16()], "a weight is bfloat16"),
            ([torch.ones(16, 8).T], "a weight does not lie row by row"),
            ([torch.ones(8, 16), torch.ones(8, 32)], "weights differ in their inputs"),
            ([torch.ones(8, 16), torch.ones(8, 32)[:, :16]], "weights differ in their strides"),
            ([torch.ones(8, 16, device="meta")], "a weight lies on meta"),
        ],
    )
    def test_reason(self, weights, reason):
        assert reason in cannot(weights)
        with pytest.raises(ValueError, match="cannot be multiplied"):
            Linear(weights)

    def test_processor(self, processor):
        processor("avx512f", "avx512bf16")
        assert cannot([torch.ones(8, 16)]) == "this processor has no AVX-512"

    def test_gate_of_two_sizes(self):
        with pytest.raises(ValueError, match="one shape"):
            Linear([torch.ones(8, 16), torch.ones(9, 16)], gated=True)


def activated(name: str, x: np.ndarray) -> np.ndarray:
    """The activation, by other means than the compiled ones."""
    if name == "silu":
        return x / 2 * (1 + np.tanh(x / 2))
    if name == "gelu_tanh":
        return nn.functional.gelu(torch.from_numpy(x), approximate="tanh").numpy()
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


class TestPrograms:
    @pytest.mark.parametrize("x_dtype", DTYPES)
    @pytest.mark.parametrize("out_dtype", DTYPES)
    @pytest.mark.parametrize("centred", [False, True])
    @pytest.mark.parametrize("tokens", [1, 6])
    def test_norm(self, x_dtype, out_dtype, centred, tokens):
        rng = np.random.default_rng(5)
        x, out = matrix(rng, 6, 80, x_dtype), matrix(rng, 6, 80, out_dtype)
        residual = matrix(rng, 6, 80, out_dtype)
        weight, bias = (matrix(rng, 1, 80, torch.float32)[0].clone() for _ in range(2))
        before = out.clone()
        program = Program()
        program.norm(x, weight, 1e-3, out=out, bias=bias, residual=residual, centred=centred)
        program.run(tokens)
        wanted = double(x)
        if centred:
            wanted = wanted - wanted.mean(-1, keepdims=True)
        wanted = wanted / np.sqrt(np.square(wanted).mean(-1, keepdims=True) + 1e-3)
        wanted = wanted * double(weight) + double(bias) + double(residual)
        assert_within(out[:tokens], wanted[:tokens], 1e-5)
        assert torch.equal(out[tokens:], before[tokens:])

    def test_norm_of_heads_in_place_and_of_chosen_rows(self):
        rng = np.random.default_rng(6)
        x = matrix(rng, 4, 96, torch.float32)
        heads = double(x).reshape(4, 3, 32)
        wanted = heads / np.sqrt(np.square(heads).mean(-1, keepdims=True) + 1e-6)
        program = Program()
        program.norm(x, None, 1e-6, out=x, heads=3)
        program.run(4)
        assert_within(x, wanted.reshape(4, 96), 1e-5)
        out = torch.empty(2, 96)
        chosen = Program()
        chosen.norm(x, torch.full((96,), 2.0), 0.0, out=out, index=torch.tensor([3, 1]))
        chosen.run(2)
        rows = double(x)[[3, 1]]
        assert_within(out, 2 * rows / np.sqrt(np.square(rows).mean(-1, keepdims=True)), 1e-5)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_rotary(self, dtype):
        rng = np.random.default_rng(7)
        x = matrix(rng, 9, 3 * 80, dtype)
        angles = torch.from_numpy(rng.uniform(0, 6, (9, 32)))
        wanted = double(x).reshape(9, 3, 80).copy()
        # As complex numbers, of which the first two heads' first 64 elements are the parts.
        pairs = (wanted[:, :2, :32] + 1j * wanted[:, :2, 32:64]) * np.exp(1j * angles.numpy())[
            :, None
        ]
        wanted[:, :2, :32], wanted[:, :2, 32:64] = pairs.real, pairs.imag
        program = Program()
        program.rotary(x, angles.cos().float(), angles.sin().float(), heads=2, head_size=80)
        program.run(9)
        assert_within(x, wanted.reshape(9, -1), 1e-5)

    @pytest.mark.parametrize("tokens", [1, 2, 8, 40])
    def test_decoder_layer(self, tokens):
        """Each operation sees what the ones before it have left, on all threads."""
        rng = np.random.default_rng(8)
        size, wide = 128, 352

        def weight(rows: int, columns: int) -> torch.Tensor:
            return matrix(rng, rows, columns, torch.float32) / columns**0.5

        x, h = matrix(rng, 40, size, torch.float32), torch.empty(40, size)
        middle, norm = torch.empty(40, wide), torch.rand(size) + 0.5
        gate, up, down = weight(wide, size), weight(wide, size), weight(size, wide)
        wanted = double(x)
        program = Program()
        for _ in range(12):
            program.norm(x, norm, 1e-5, out=h)
            mlp = Linear([gate, up], activation="silu", gated=True)
            program.linear(mlp, h, out=middle)
            program.linear(Linear([down]), middle, out=x, residual=x)
            normed = wanted / np.sqrt(np.square(wanted).mean(-1, keepdims=True) + 1e-5)
            normed *= double(norm)
            inner = activated("silu", normed @ double(gate).T) * (normed @ double(up).T)
            wanted = wanted + inner @ double(down).T
        before = double(x)
        program.run(tokens)
        assert_within(x[:tokens], wanted[:tokens], 1e-3)
        assert np.array_equal(double(x)[tokens:], before[tokens:])

    def test_call_of_another_function_between_operations(self):
        @cfunc(types.void(types.CPointer(types.float32)))
        def one(data):
            carray(data, 1)[0] = 1.0

        x, out = torch.zeros(1, 16), torch.empty(1, 16)
        program = Program()
        program.call(one.address, x.data_ptr())
        program.linear(Linear([torch.full((16, 16), 2.0)]), x, out=out)
        program.run(1)
        assert torch.equal(out, torch.full((1, 16), 2.0))

    def test_records_can_be_changed_between_runs(self):
        first, second, out = torch.zeros(1, 16), torch.ones(1, 16), torch.empty(1, 16)
        program = Program()
        number = program.linear(Linear([torch.ones(16, 16)]), first, out=out)
        program.run(1)
        assert torch.equal(out, torch.zeros(1, 16))
        program.ops["x"][number] = second.data_ptr()
        program.run(1)
        assert torch.equal(out, torch.full((1, 16), 16.0))

    def test_refusals(self):
        x = torch.ones(4, 32)
        program = Program()
        program.linear(Linear([torch.ones(32, 32)]), x, out=torch.ones(4, 32))
        with pytest.raises(ValueError, match="5 tokens where buffers have room for 4"):
            program.run(5)
        half = torch.ones(32, 32).bfloat16()
        with pytest.raises(ValueError, match="of one dtype"):
            program.linear(Linear([half]), x.bfloat16(), out=x)
        with pytest.raises(ValueError, match="does not fit"):
            program.norm(x, torch.ones(16), 1e-5, out=x)
        with pytest.raises(ValueError, match="does not fit"):
            program.rotary(x, torch.ones(4, 8), torch.ones(4, 8), heads=1, head_size=32)
