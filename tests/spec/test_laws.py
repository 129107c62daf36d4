"""Laws of what a model keeps, for every published config and any mixture of their layers."""

import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvhouse.errors import SpecError
from kvhouse.formats import get_format
from kvhouse.planner import kv_cache_gb
from kvhouse.spec import Layer, ModelSpec
from kvhouse.spec.hf_config import read_config

HERE = Path(__file__).parent
PUBLIC = (HERE / "data" / "public_configs.jsonl").read_text(encoding="utf-8").splitlines()
TINY = (HERE.parent / "oracle" / "tiny_configs.jsonl").read_text().splitlines()
DTYPES = ["float32", "bfloat16"]


def specs() -> list[ModelSpec]:
    """Every published config, and the tiny ones of every architecture that is read."""
    found = [read_config(json.loads(line)["config"], "m", "here") for line in PUBLIC]
    for row in map(json.loads, TINY):
        with contextlib.suppress(SpecError):  # the few that are refused
            found.append(read_config({"model_type": row["model_type"], **row["config"]}, "m", "x"))
    return found


SPECS = specs()
LAYERS = sorted({layer for spec in SPECS for layer in spec.layers}, key=repr)

some_layers = st.lists(st.sampled_from(LAYERS), min_size=1, max_size=8).map(tuple)
lengths = st.integers(0, 3000) | st.integers(0, 2**40)


@dataclass(frozen=True)
class Bits:
    """A format of any number of bits, each vector in whole bytes."""

    bits: int

    def vector_bytes(self, elements: int) -> int:
        return -(-elements * self.bits // 8)


def of(layers: tuple[Layer, ...]) -> ModelSpec:
    return replace(SPECS[0], layers=layers)


def test_layers_of_all_kinds_are_there() -> None:
    kinds = {part.kind for layer in LAYERS for part in layer.parts}
    assert len(kinds) >= 12
    assert len(SPECS) > 350


@settings(max_examples=400, deadline=None)
@given(some_layers, lengths, st.integers(1, 32), st.sampled_from(DTYPES))
def test_layers_add_up(layers: tuple[Layer, ...], n: int, bits: int, dtype: str) -> None:
    alone = [of((layer,)).kv_bytes(n, Bits(bits), dtype=dtype) for layer in layers]
    assert of(layers).kv_bytes(n, Bits(bits), dtype=dtype) == sum(alone)
    assert of(layers * 3).kv_bytes(n, Bits(bits), dtype=dtype) == 3 * sum(alone)


@settings(max_examples=400, deadline=None)
@given(some_layers, lengths, st.integers(1, 5000), st.integers(1, 31), st.integers(0, 3000))
def test_more_tokens_or_bits_are_never_less(
    layers: tuple[Layer, ...], n: int, more: int, bits: int, across: int
) -> None:
    def kept(tokens: int, width: int, other: int = across, dtype: str = "bfloat16") -> int:
        return of(layers).kv_bytes(tokens, Bits(width), dtype=dtype, encoder_tokens=other)

    assert of(layers).state_bytes(dtype="bfloat16") == kept(0, bits, 0)
    assert kept(0, bits, 0) <= kept(n, bits) <= kept(n + more, bits)
    assert kept(n, bits) <= kept(n, bits + 1)
    assert kept(n, bits) <= kept(n, bits, across + more)
    assert kept(n, bits) <= kept(n, bits, dtype="float32")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SPECS), lengths, st.integers(1, 5000))
def test_a_token_costs_at_most_what_all_its_layers_keep_of_one(
    spec: ModelSpec, n: int, more: int
) -> None:
    # Hash buckets begin all at once, and an encoder's tokens are not the request's.
    parts = [part for layer in spec.layers for part in layer.parts if part.kind != "hash buckets"]
    fmt = get_format("bf16")
    slope = sum(part.token_bytes(fmt, spec.dtype) for part in parts if not part.across)
    grown = replace(spec, layers=tuple(parts))
    first, later = grown.kv_bytes(n, fmt), grown.kv_bytes(n + more, fmt)
    groups = sum(4 * part.token_bytes(fmt, spec.dtype) for part in parts if part.kind == "overlap")
    assert later - first <= more * slope + groups


@given(
    st.integers(1, 200),
    st.sampled_from([64 * heads for heads in range(1, 200)]),
    st.integers(1, 2**20),
    st.integers(1, 4096),
    st.sampled_from([0.5, 1, 2, 4]),
)
def test_the_reference_scales_with_each_factor(
    layers: int, hidden: int, n: int, batch: int, precision: float
) -> None:
    one = kv_cache_gb(layers, hidden, n, 1, precision)
    assert kv_cache_gb(layers, hidden, n, batch, precision) == pytest.approx(batch * one)
    assert kv_cache_gb(layers, hidden, 2 * n, 1, precision) == pytest.approx(2 * one)
    assert kv_cache_gb(layers, hidden, n, 1, 2 * precision) == pytest.approx(2 * one)
