"""From tokens to text, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: What decoders put in place of bytes that are no complete character.
_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Turns one request's tokens into text as they come.

    A character may be spread over several tokens and is held back until it is complete. Some
    tokenizers treat a text's first token differently, so each piece is decoded together with
    the tokens of the piece before it, whose text is then cut off.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._shown: list[int] = []
        self._held: list[int] = []

    def add(self, token: int) -> str:
        """Take the next token and return the text that it completes, maybe none."""
        if self._tokenizer is None:
            return ""
        self._held.append(token)
        text = self._pending()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._shown, self._held = self._held, []
        return text

    def finish(self) -> str:
        """The text of what is held back, complete or not."""
        text = self._pending() if self._held else ""
        self._held = []
        return text

    def _pending(self) -> str:
        before = self._decode(self._shown)
        return self._decode(self._shown + self._held)[len(before) :]

    def _decode(self, tokens: list[int]) -> str:
        assert self._tokenizer is not None
        text = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text
