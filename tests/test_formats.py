"""Bytes of a vector in each format against tables."""

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from kvhouse.errors import KvhouseError
from kvhouse.formats import FORMATS, get_format

# By hand: elements times the type's bits, and a scale of two bytes a vector; int4 has a scale for
# each 32 elements or part of them.
TABLE = {
    "bf16": {1: 2, 64: 128, 128: 256},
    "fp16": {1: 2, 64: 128, 128: 256},
    "fp32": {1: 4, 64: 256, 128: 512},
    "fp8": {1: 3, 64: 66, 80: 82, 128: 130, 576: 578},
    "int8": {1: 3, 64: 66, 80: 82, 128: 130, 576: 578},
    "int4": {1: 3, 31: 18, 32: 18, 33: 21, 64: 36, 80: 46, 96: 54, 128: 72, 576: 324},
}


@pytest.mark.parametrize("name", list(FORMATS))
def test_bytes_of_a_vector(name):
    kv_format = get_format(name)
    assert {n: kv_format.vector_bytes(n) for n in TABLE[name]} == TABLE[name]
    assert kv_format.vector_bytes(0) == 0


def test_int4_takes_what_a_block_of_q4_0_takes():
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType.Q4_0]
    assert (elements, size) == (32, 18)
    assert [FORMATS["int4"].vector_bytes(n * elements) for n in (1, 2, 4)] == [18, 36, 72]


def test_an_unknown_format_is_refused():
    with pytest.raises(KvhouseError, match="unknown KV format 'q8': choose one of bf16, fp16"):
        get_format("q8")
