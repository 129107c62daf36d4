"""Text that comes piece by piece is the text, and no piece ends within a character."""

from __future__ import annotations

import pytest

from kvhouse.engine.detokenizer import Detokenizer

TEXTS = (
    "Plain words, with  two spaces\n\tand a tab.",
    "東京の天気は晴れです。",
    "naïve café — “quotes” …",
    "👩‍👩‍👧‍👦 families and 🏳️‍🌈 flags 🇨🇭",
    "한국어 텍스트 и русский",
)


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_text_and_split_no_character(smollm2_model, text):
    tokenizer = smollm2_model.tokenizer
    tokens = tokenizer(text)["input_ids"]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(token) for token in tokens]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == text
    assert detokenizer.finish() == ""


def test_some_tokens_complete_nothing(smollm2_model):
    """The case that matters does occur: one character over several tokens."""
    tokens = smollm2_model.tokenizer("👩")["input_ids"]
    assert len(tokens) > 1
    detokenizer = Detokenizer(smollm2_model.tokenizer)
    assert [detokenizer.add(token) for token in tokens] == [""] * (len(tokens) - 1) + ["👩"]


def test_what_never_completes_is_shown_at_the_end(smollm2_model):
    tokens = smollm2_model.tokenizer("a👩")["input_ids"][:-1]
    detokenizer = Detokenizer(smollm2_model.tokenizer)
    assert "".join(detokenizer.add(token) for token in tokens) == "a"
    assert set(detokenizer.finish()) == {"\ufffd"}


def test_special_tokens_have_no_text(smollm2_model):
    tokenizer = smollm2_model.tokenizer
    (end,) = smollm2_model.eos_token_ids
    tokens = [*tokenizer("one")["input_ids"], end, *tokenizer(" two")["input_ids"]]
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.add(token) for token in tokens) == "one two"


def test_without_a_tokenizer_there_is_no_text():
    detokenizer = Detokenizer(None)
    assert detokenizer.add(3) == detokenizer.finish() == ""
