"""Searching four bytes at a time finds what looking at every line finds."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from kvhouse.doctor.anchors import Anchors
from kvhouse.doctor.engines import LINES
from kvhouse.doctor.scan import Scanner

WORDS = sorted({each.needle for each in LINES} | {each.anchor for each in LINES})
PIECES = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from([b"\n", b"\n", b" ", b"x", b"KV", b"prompt: ", b"INFO 1 "]),
    st.binary(max_size=9).filter(lambda piece: b"\x1b" not in piece),
)
OF_USERS = (b"Received request", b"prompt: ", b'"prompt"', b'"messages"', b"'messages'")


def naive(content: bytes) -> list[tuple[int, set[str]]]:
    """Every line with every format whose words it has, one by one."""
    found = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        lines = [each for each in LINES if each.anchor in line and each.needle in line]
        alone = next((each for each in lines if each.only), None)
        lines = lines if alone is None else [alone]
        if any(word in line for word in OF_USERS):
            lines = [each for each in lines if each.anywhere]
        if lines:
            found.append((number, {each.regex.pattern for each in lines}))
    return found


@given(st.lists(PIECES, max_size=80).map(b"".join))
def test_as_many_lines_as_one_by_one(content: bytes) -> None:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\\u001" in content:
        return
    found = [
        (each.number, {line.regex.pattern for line in each.lines})
        for each in Scanner().candidates(io.BytesIO(content))
    ]
    expected = naive(content)
    assert [number for number, _ in found] == [number for number, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        # Of several formats that stand alone, the first in a line's order is tried.
        assert ours == theirs or len(ours) == len(theirs) == 1


@given(st.binary(max_size=40), st.sampled_from(WORDS), st.binary(max_size=40))
def test_an_anchor_is_found_wherever_it_lies(before: bytes, anchor: bytes, after: bytes) -> None:
    if b"\n" in anchor:
        return
    content = before + anchor + after
    hits = [index for _, indexes in Anchors([anchor]).hits(content) for index in indexes]
    assert 0 in hits
