"""What an answer looks like on the wire, whole and in chunks.

Chunks are put together from text, since a stream's every token needs one: what stays the same is
encoded once for each answer.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from kvhouse.engine import Completion, Token, TokenLogprobs

#: The text of one token alone.
TokenText = Callable[[int], str]

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: %b\n\n" % json.dumps(data, separators=(",", ":")).encode()


def usage_of(prompts: Sequence[Sequence[int]], completions: Sequence[Completion]) -> dict[str, Any]:
    """What answers took, each prompt counted once however many answers it got."""
    prompt_tokens = sum(map(len, prompts))
    new_tokens = sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new_tokens,
        "total_tokens": prompt_tokens + new_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(one.cached_tokens for one in completions if one.sample == 0)
        },
    }


class _Form(ABC):
    """An answer's envelope."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, token_text: TokenText) -> None:
        self.id = f"{self.prefix}-{uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._token_text = token_text
        self._begun: set[int] = set()
        head = json.dumps(self._head(self.chunk_object), separators=(",", ":"))
        self._open = f'data: {head[:-1]},"choices":[{{"index":'

    def whole(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> dict[str, Any]:
        """The whole answer."""
        choices = [
            {
                "index": index,
                **self._content(one),
                "logprobs": self._all_logprobs(one) if one.logprobs else None,
                "finish_reason": one.finish_reason.value,
            }
            for index, one in enumerate(completions)
        ]
        head = self._head(self.whole_object)
        return {**head, "choices": choices, "usage": usage_of(prompts, completions)}

    def chunk(self, index: int, token: Token) -> str:
        """The events of one token of the answer with that number."""
        begin = ""
        if index not in self._begun:
            self._begun.add(index)
            begin = self._beginning(index)
        logprobs = "null"
        if token.logprobs is not None:
            made = self._logprobs_of(index, token.id, token.logprobs)
            logprobs = json.dumps(made, separators=(",", ":"))
        reason = f'"{token.finish_reason.value}"' if token.finish_reason else "null"
        content = self._piece(json.dumps(token.text))
        return (
            f"{begin}{self._open}{index},{content},"
            f'"logprobs":{logprobs},"finish_reason":{reason}}}]}}\n\n'
        )

    def usage_chunk(
        self, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
    ) -> bytes:
        """The last event of a stream that was asked to say what it took."""
        head = self._head(self.chunk_object)
        return event({**head, "choices": [], "usage": usage_of(prompts, completions)})

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _beginning(self, index: int) -> str:
        """What comes before an answer's first token."""
        del index
        return ""

    @abstractmethod
    def _content(self, completion: Completion) -> dict[str, Any]:
        """The part of a whole answer that carries its text."""

    @abstractmethod
    def _piece(self, text: str) -> str:
        """The part of a chunk that carries a text, which is JSON already."""

    @abstractmethod
    def _all_logprobs(self, completion: Completion) -> dict[str, Any]:
        """The log-probabilities of all tokens of a whole answer."""

    @abstractmethod
    def _logprobs_of(self, index: int, token: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        """The log-probabilities of one token of a stream."""


class CompletionForm(_Form):
    """Answers of ``/v1/completions``."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, model: str, token_text: TokenText) -> None:
        super().__init__(model, token_text)
        self._lengths: dict[int, int] = {}

    def _content(self, completion: Completion) -> dict[str, Any]:
        return {"text": completion.text}

    def _piece(self, text: str) -> str:
        return f'"text":{text}'

    def _all_logprobs(self, completion: Completion) -> dict[str, Any]:
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        return self._listed(list(pairs), 0)

    def _logprobs_of(self, index: int, token: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        offset = self._lengths.get(index, 0)
        made = self._listed([(token, logprobs)], offset)
        self._lengths[index] = offset + len(self._token_text(token))
        return made

    def _listed(self, tokens: list[tuple[int, TokenLogprobs]], offset: int) -> dict[str, Any]:
        texts = [self._token_text(token) for token, _ in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        names = [self._names(token, one) for token, one in tokens]
        return {
            "tokens": [named[token] for named, (token, _) in zip(names, tokens, strict=True)],
            "token_logprobs": [one.chosen for _, one in tokens],
            "top_logprobs": [
                {named[other]: value for other, value in (*one.top, (token, one.chosen))}
                for named, (token, one) in zip(names, tokens, strict=True)
            ],
            "text_offset": offsets,
        }

    def _names(self, chosen: int, logprobs: TokenLogprobs) -> dict[int, str]:
        """What the tokens of one position are called, each by a name of its own.

        That is the token's text. Where there is none, or it is only part of a character, it is
        the id, in vLLM's way of writing it. Of several with one text the chosen one has it, else
        the likeliest, and the others have their ids.
        """
        names: dict[int, str] = {}
        for token in (chosen, *(token for token, _ in logprobs.top)):
            text = self._token_text(token)
            taken = not text or "\ufffd" in text or text in names.values()
            names.setdefault(token, f"token_id:{token}" if taken else text)
        return names


class ChatForm(_Form):
    """Answers of ``/v1/chat/completions``."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _beginning(self, index: int) -> str:
        return (
            f'{self._open}{index},"delta":{{"role":"assistant","content":""}},'
            '"logprobs":null,"finish_reason":null}]}\n\n'
        )

    def _content(self, completion: Completion) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": completion.text, "refusal": None}}

    def _piece(self, text: str) -> str:
        return f'"delta":{{"content":{text}}}'

    def _all_logprobs(self, completion: Completion) -> dict[str, Any]:
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        return {"content": [self._entry(*pair) for pair in pairs], "refusal": None}

    def _logprobs_of(self, index: int, token: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        del index
        return {"content": [self._entry(token, logprobs)], "refusal": None}

    def _entry(self, token: int, logprobs: TokenLogprobs) -> dict[str, Any]:
        top = [self._named(other, value) for other, value in logprobs.top]
        return {**self._named(token, logprobs.chosen), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._token_text(token)
        # A token that is part of a character has no text of its own, and its bytes are not known.
        known = "\ufffd" not in text
        return {
            "token": text,
            "logprob": logprob,
            "bytes": list(text.encode()) if known else None,
        }
