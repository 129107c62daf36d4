"""How answers are written where texts do not tell tokens apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvhouse.engine import Completion, Token, TokenLogprobs
from kvhouse.engine.outputs import FinishReason
from kvhouse.server.forms import CompletionForm
from kvhouse.server.requests import ChatRequest

DOCS = Path(__file__).parents[2] / "docs"

#: Tokens 1 to 3 are bytes of one character, 5 differs from 4 by a space that decoding drops, and
#: 7 stands for nothing that can be read.
TEXTS = {1: "\ufffd", 2: "\ufffd", 3: "a\ufffd", 4: "the", 5: "the", 6: "é", 7: ""}


def form():
    return CompletionForm("m", TEXTS.__getitem__)


def listed(*positions):
    """The log-probabilities of a whole answer, and of the same answer in a stream."""
    ids = tuple(token for token, _ in positions)
    likely = tuple(TokenLogprobs(chosen, tuple(top)) for _, (chosen, top) in positions)
    done = Completion(0, 1, ids, "", FinishReason.LENGTH, logprobs=likely)
    whole = form().whole([[9]], [done])["choices"][0]["logprobs"]
    streaming = form()
    chunks = [
        json.loads(streaming.chunk(0, Token(0, token, "", logprobs=one)).removeprefix("data: "))
        for token, one in zip(ids, likely, strict=True)
    ]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert {name: [part[name][0] for part in parts] for name in whole} == whole
    return whole


def test_tokens_that_are_parts_of_characters_stay_apart():
    given = listed((2, (-0.7, [(1, -0.5), (2, -0.7), (3, -2.0), (6, -3.0)])))
    assert given["top_logprobs"] == [
        {"token_id:1": -0.5, "token_id:2": -0.7, "token_id:3": -2.0, "é": -3.0}
    ]
    assert given["tokens"] == ["token_id:2"]


def test_of_tokens_with_one_text_the_chosen_one_has_it_and_then_the_likelier():
    chosen = listed((5, (-0.9, [(4, -0.5), (5, -0.9)])))
    assert chosen["tokens"] == ["the"]
    assert chosen["top_logprobs"] == [{"token_id:4": -0.5, "the": -0.9}]
    other = listed((6, (-0.1, [(6, -0.1), (4, -0.5), (5, -0.9)])))
    assert other["top_logprobs"] == [{"é": -0.1, "the": -0.5, "token_id:5": -0.9}]


@pytest.mark.parametrize("top", [[], [(6, -0.1)]])
def test_the_chosen_token_is_always_named(top):
    """As in OpenAI's API: there may be one more than were asked for."""
    given = listed((4, (-4.0, top)), (7, (-5.0, top)))
    assert given["tokens"] == ["the", "token_id:7"]
    for tokens, likely in zip(given["tokens"], given["top_logprobs"], strict=True):
        assert likely[tokens] in (-4.0, -5.0)
        assert len(likely) == len(top) + 1
    assert given["text_offset"] == [0, 3]


@pytest.mark.parametrize("document", ["server.md", "server.zh-CN.md"])
def test_the_first_request_that_the_docs_show_ends_soon(document):
    (body,) = re.findall(
        r"curl .*/v1/chat/completions .*\n  -d '(.*)'\n", (DOCS / document).read_text()
    )
    asked = ChatRequest.model_validate_json(body)
    assert asked.max_completion_tokens == 64
