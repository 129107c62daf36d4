"""A request between its submission and its completion, as its caller sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhouse.core.request import Request
from kvhouse.engine.detokenizer import Detokenizer
from kvhouse.engine.executor import TorchExecutor
from kvhouse.engine.outputs import Completion, FinishReason, Token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LiveRequest:
    """Collects a request's output until its caller takes it."""

    def __init__(
        self, request: Request, tokenizer: PreTrainedTokenizerBase | None, led_by_caller: bool
    ) -> None:
        self.request = request
        self.led_by_caller = led_by_caller
        self.completion: Completion | None = None
        self._detokenizer = Detokenizer(tokenizer)
        self._text: list[str] = []
        self._tokens: list[Token] = []

    @property
    def id(self) -> int:
        """The request's id."""
        return self.request.id

    def take_tokens(self) -> list[Token]:
        """The tokens that came since the last call."""
        taken, self._tokens = self._tokens, []
        return taken

    def update(self, executor: TorchExecutor, *, stopped: bool, ended: bool) -> None:
        """Take in the token that a step gave, and close the books if it was the last."""
        known = executor.tokens(self.id)
        error = executor.error(self.id)
        if error is None:
            token = known[-1]
            text = self._detokenizer.add(token)
            if ended:
                text += self._detokenizer.finish()
            self._text.append(text)
            self._tokens.append(Token(self.id, token, text))
        if ended:
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            self.completion = Completion(
                request=self.id,
                prompt_tokens=self.request.prompt_tokens,
                token_ids=tuple(known[self.request.prompt_tokens :]),
                text="".join(self._text),
                finish_reason=FinishReason.ERROR if error else reason,
                error=error,
            )
