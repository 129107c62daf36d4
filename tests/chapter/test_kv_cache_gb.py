"""The reference text's function and the sizes it prints, in GiB."""

import inspect

import pytest

from kvhouse import kv_cache_gb


def test_signature():
    parameters = inspect.signature(kv_cache_gb).parameters
    assert list(parameters) == ["layers", "hidden", "n", "batch", "precision"]
    assert parameters["batch"].default == 1
    assert parameters["precision"].default == 2


@pytest.mark.parametrize(
    ("layers", "hidden", "batch", "gib"),
    [(32, 4096, 1, 2.0), (32, 4096, 32, 64.0), (80, 8192, 1, 10.0)],
)
def test_sizes_at_4096_tokens(layers, hidden, batch, gib):
    assert kv_cache_gb(layers, hidden, 4096, batch) == gib


def test_fp8_halves_and_int4_quarters_before_scales():
    assert kv_cache_gb(32, 4096, 4096, precision=1) == 1.0
    assert kv_cache_gb(32, 4096, 4096, precision=0.5) == 0.5


def test_70b_with_8_heads_of_64_takes_an_eighth():
    heads, head_dim = 64, 128
    all_heads = kv_cache_gb(80, heads * head_dim, 4096)
    assert kv_cache_gb(80, 8 * head_dim, 4096) == all_heads / 8
