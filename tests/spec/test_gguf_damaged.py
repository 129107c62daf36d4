"""GGUF files that are truncated, changed or made to do harm."""

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhouse.errors import SpecError
from kvhouse.spec import find_gguf, load
from kvhouse.spec.gguf_header import read_header

Make = Callable[..., Path]


def load_or_refuse(path: Path) -> None:
    """Whichever it is, the outcome is sane."""
    try:
        spec = load(path)
    except SpecError as error:
        message = str(error)
    else:
        assert len(spec.layers) == 2
        assert 0 < spec.matmul_parameters <= 2 * spec.parameters < 10**6
        return
    assert message.isprintable()
    assert len(message) < len(str(path)) + 400


def test_truncated_anywhere(make_gguf: Make) -> None:
    path = make_gguf("qwen3")
    header_bytes = min(tensor.offset for tensor in read_header(path).tensors.values())
    size = path.stat().st_size
    for length in (
        size - 1,
        *range(size - 4001, header_bytes, -4001),
        *range(header_bytes, -1, -1),
    ):
        os.truncate(path, length)
        with pytest.raises(SpecError, match=r"truncated|not a GGUF file") as caught:
            load(path)
        assert str(caught.value).isprintable()


def test_any_byte_of_the_header_changed(make_gguf: Make) -> None:
    path = make_gguf()
    whole = bytearray(path.read_bytes())
    header_bytes = min(tensor.offset for tensor in read_header(path).tensors.values())
    with path.open("r+b") as file:
        for position in range(header_bytes):
            for value in (0xFF, whole[position] ^ 1):
                file.seek(position)
                file.write(bytes([value]))
                file.flush()
                load_or_refuse(path)
            file.seek(position)
            file.write(whole[position : position + 1])


def test_smollm2_truncated_in_its_header(tmp_path: Path) -> None:
    source = find_gguf("smollm2")
    with source.open("rb") as file:
        head = file.read(1_785_664)
    path = tmp_path / "cut.gguf"
    for length in (*range(0, 2000, 7), *range(2000, len(head), 60_013), len(head)):
        path.write_bytes(head[:length])
        with pytest.raises(SpecError, match=r"truncated|not a GGUF file"):
            load(path)


ABSURD = struct.pack("<Q", 2**63 - 1)
START = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"PK\3\4" * 100, "it starts otherwise"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "not supported; versions 2 and 3"),
        (START + ABSURD + struct.pack("<Q", 0) + bytes(64), "9223372036854775807 tensors do not"),
        (START + struct.pack("<Q", 0) + ABSURD + bytes(64), "metadata entries do not fit"),
        (START + struct.pack("<QQ", 0, 1) + ABSURD + bytes(64), "bytes of text do not fit"),
        (
            START + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<II", 9, 0) + ABSURD + bytes(64),
            "array items do not fit",
        ),
        (
            START + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<II", 9, 8) + ABSURD + bytes(64),
            "strings do not fit",
        ),
        (
            START + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 8, 2) + ABSURD * 9,
            "an array of 2 strings runs past the end",
        ),
        (
            START + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 9, 5) + bytes(64),
            "array of type 9 is not supported",
        ),
        (START + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<I", 77) + bytes(64), "type 77"),
        (
            START + struct.pack("<QQ", 70_000, 0) + bytes(1_700_000),
            "of which 65536 are read at most",
        ),
        (
            START + struct.pack("<QQ", 0, 2) + (KEY + struct.pack("<IB", 0, 1)) * 2 + bytes(64),
            "key 'k' is stated twice",
        ),
        (
            START + struct.pack("<QQ", 1, 0) + KEY + struct.pack("<I", 2**31) + bytes(64),
            "has 2147483648 dimensions",
        ),
        (
            START + struct.pack("<QQ", 1, 0) + KEY + struct.pack("<I", 2) + ABSURD * 2 + bytes(64),
            "the tensors do not fit",
        ),
        (
            START + struct.pack("<QQ", 1, 0) + KEY + struct.pack("<IQIQ", 1, 8, 99, 0) + bytes(64),
            "has type 99, which ggml does not know",
        ),
        (
            START + struct.pack("<QQ", 1, 0) + KEY + struct.pack("<IQIQ", 1, 9, 2, 0) + bytes(64),
            r"of type Q4_0 has shape \(9,\)",
        ),
        (
            START
            + struct.pack("<QQ", 1, 0)
            + KEY
            + struct.pack("<IQI", 1, 8, 0)
            + ABSURD
            + bytes(99),
            "truncated GGUF file: tensor 'k' ends at byte",
        ),
    ],
)
def test_hostile_headers_cost_nothing(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(SpecError, match=reason):
        load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
