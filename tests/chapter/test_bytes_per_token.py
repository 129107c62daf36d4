"""The reference text's KV bytes per token and per request, with units made explicit."""

import pytest

from kvhouse.layout import KVLayout
from kvhouse.spec import load

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-2-7b", 524_288),
        ("llama-2-13b", 819_200),
        ("llama-2-70b", 327_680),
        ("llama-2-70b-mha", 2_621_440),
    ],
)
def test_bytes_per_token_in_fp16(name: str, bytes_per_token: int) -> None:
    assert KVLayout.of(load(name), "fp16").bytes_per_token == bytes_per_token


def test_as_the_text_says_them() -> None:
    per_token = {
        name: KVLayout.of(load(name), "fp16").bytes_per_token
        for name in ("llama-2-7b", "llama-2-13b", "llama-2-70b-mha")
    }
    assert per_token["llama-2-7b"] == 0.5 * MIB
    assert round(per_token["llama-2-13b"] / MIB, 2) == 0.78
    assert per_token["llama-2-70b-mha"] == 2.5 * MIB
    # The text's 2.6 MB for the 70B model are decimal.
    assert round(per_token["llama-2-70b-mha"] / 1e6, 1) == 2.6


@pytest.mark.parametrize(
    ("name", "logical_bytes"),
    [
        ("llama-2-7b", 2_147_483_648),
        ("llama-2-13b", 3_355_443_200),
        ("llama-3-70b", 1_342_177_280),
    ],
)
@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_logical_bytes_of_one_request_of_4096_tokens(
    name: str, logical_bytes: int, block_size: int
) -> None:
    layout = KVLayout.of(load(name), "bf16", block_size)
    assert 4096 * layout.bytes_per_token == logical_bytes
    # 4096 is a multiple of each block size, so paging reserves no byte more.
    assert layout.blocks_for(4096) * layout.block_bytes == logical_bytes


def test_eight_kv_heads_of_64_keep_an_eighth() -> None:
    grouped, full = (KVLayout.of(load(n)) for n in ("llama-2-70b", "llama-2-70b-mha"))
    assert grouped.bytes_per_token * 8 == full.bytes_per_token


def test_fp32_doubles() -> None:
    spec = load("llama-2-7b")
    assert KVLayout.of(spec, "fp32").bytes_per_token == 2 * 524_288
