"""A stop text ends an answer at the same letter, however the text is cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvhouse.engine.stop_texts import StopTexts

LETTERS = st.text("abc", max_size=14)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)


def read_letter_by_letter(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The longest stop text that the first letter to end one completes, and what is before it."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(LETTERS, max_size=6), STOPS)
def test_cut_where_the_first_stop_text_is_complete(pieces, stops):
    watch = StopTexts(stops)
    shown = [watch.add(piece) for piece in pieces]
    shown.append(watch.finish())
    assert ("".join(shown), watch.found) == read_letter_by_letter("".join(pieces), stops)


@given(st.lists(LETTERS, max_size=6), STOPS)
def test_no_more_is_held_back_than_may_begin_a_stop_text(pieces, stops):
    watch = StopTexts(stops)
    said = shown = ""
    for piece in pieces:
        said += piece
        shown += watch.add(piece)
        if watch.found is None:
            held = said[len(shown) :]
            assert not held or any(stop.startswith(held) for stop in stops)
            assert said == shown + held


def test_nothing_comes_after_it():
    watch = StopTexts(["END"])
    assert [watch.add(piece) for piece in ("one E", "N", "D two", "three")] == ["one ", "", "", ""]
    assert watch.finish() == ""
    assert watch.found == "END"
