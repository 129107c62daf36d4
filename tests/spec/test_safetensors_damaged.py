"""Safetensors headers that are truncated, changed or made to do harm."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from kvhouse.errors import SpecError
from kvhouse.spec import load
from kvhouse.spec.safetensors_header import header_bytes, parse_header

Tiny = Callable[..., dict[str, object]]


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "header is not a JSON object"),
        (b"[]", "header is not a JSON object"),
        (b"{", "not JSON: "),
        (b'{"a":\xff}', "not UTF-8 text"),
        (b'{"a":' + b"[" * 10**5, "nested too deeply"),
        (b'{"a":{},"a":{}}', "key 'a' is stated twice"),
        (b'{"a":[' + b"1," * 2**22 + b"1]}", "holds more than 4194304 values"),
        ({"a": 5}, "tensor 'a' is 5, not an object"),
        ({"vision" * 10**5: entry()}, "has a name of 600000 characters"),
        ({"a": {}}, "tensor 'a' has dtype None, which the format does not have"),
        ({"a": entry("F31")}, "has dtype 'F31'"),
        ({"a": entry(["F32"])}, "has dtype "),
        ({"a": entry(shape=[-2])}, r"has shape \[-2\], not a list of sizes"),
        ({"a": entry(shape=[True, 2])}, "not a list of sizes"),
        ({"a": entry(shape=[1.0])}, "not a list of sizes"),
        ({"a": entry(shape=[2**40, 2**40])}, "not a list of sizes"),
        ({"a": entry(shape=[1] * 99)}, "not a list of sizes"),
        ({"a": entry(offsets=[8, 0])}, "takes -8 bytes by its data_offsets, but 8 by its shape"),
        ({"a": entry(offsets=[0, 4])}, "takes 4 bytes by its data_offsets, but 8 by its shape"),
        ({"a": entry(offsets=[0])}, r"has data_offsets \[0\]"),
        ({"a": entry(offsets=["0", "8"])}, "has data_offsets"),
        ({"a": entry(offsets=[8, 16])}, "ends at byte 16 of the 8"),
        ({"a": entry("F4", [3], [0, 1])}, "but 1.5 by its shape and dtype"),
        ({"a": entry(), "b": entry()}, "tensor 'b' overlaps the one before it at byte 0"),
        ({"a": entry("U8", [4], [4, 8])}, "leaves a gap before it at byte 4"),
        ({"a": entry("U8", [4], [0, 4])}, "its tensors end at byte 4 of the 8"),
    ],
)
def test_hostile_headers(header: object, reason: str, tmp_path: Path, tiny: Tiny) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "config.json").write_text(json.dumps(tiny("llama")))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(8))
    with pytest.raises(SpecError, match=reason) as caught:
        load(tmp_path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < len(str(tmp_path)) + 300


@pytest.mark.parametrize(
    ("prefix", "size", "reason"),
    [
        (b"1234567", 7, "it has 7 bytes"),
        (struct.pack("<Q", 2**63), 100, "its header takes 9223372036854775808 bytes, but 92 are"),
        (struct.pack("<Q", 10**8), 2 * 10**8, "at most 33554432 are read"),
    ],
)
def test_hostile_lengths(prefix: bytes, size: int, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        header_bytes(prefix, size, "m")


WHOLE = save({"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.int8)})


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_any_byte_changed(position: int, value: int) -> None:
    changed = bytearray(WHOLE)
    changed[position] = value
    try:
        end = 8 + header_bytes(bytes(changed[:8]), len(changed), "m")
        tensors = parse_header(bytes(changed[8:end]), len(changed), "m")
    except SpecError as error:
        message = str(error)
    else:
        assert sum(tensor.bytes for tensor in tensors.values()) == len(changed) - end
        return
    assert message.isprintable()


@given(st.integers(0, len(WHOLE) - 1))
def test_truncated_anywhere(length: int) -> None:
    cut = WHOLE[:length]
    with pytest.raises(SpecError):
        parse_header(cut[8 : 8 + header_bytes(cut[:8], length, "m")], length, "m")
