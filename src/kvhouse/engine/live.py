"""A request between its submission and its completion, as its caller sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvhouse.core.request import Request
from kvhouse.engine.detokenizer import Detokenizer
from kvhouse.engine.executor import TorchExecutor
from kvhouse.engine.outputs import Completion, FinishReason, Token, TokenLogprobs
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.engine.stop_texts import StopTexts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class LiveRequest:
    """Collects a request's output until its caller takes it."""

    def __init__(
        self,
        request: Request,
        sampling: SamplingParams,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        led_by_caller: bool,
    ) -> None:
        self.request = request
        self.sampling = sampling
        self.led_by_caller = led_by_caller
        self.completion: Completion | None = None
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopTexts(sampling.stop)
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._tokens: list[Token] = []
        self._cached = 0

    @property
    def id(self) -> int:
        """The request's id."""
        return self.request.id

    @property
    def prompt_is_there(self) -> bool:
        """Whether its whole prompt has been computed."""
        return self.request.generated > 0 or self.completion is not None

    def take_tokens(self) -> list[Token]:
        """The tokens that came since the last call."""
        taken, self._tokens = self._tokens, []
        return taken

    def update(self, executor: TorchExecutor, *, stopped: bool, ended: bool) -> None:
        """Take in the token that a step gave, and close the books if it was the last.

        A stop text closes them too, though the step that completed it knows nothing of it.

        Args:
            executor: Whoever has the request's tokens.
            stopped: Whether the token is one that ends the request.
            ended: Whether the request has ended with this step.
        """
        error = executor.error(self.id)
        if error is not None:
            self.fail(error)
            return
        if not self._ids:
            # Later admissions, after a preemption, find its own output as well.
            there = self.request.reused + self.request.loaded
            self._cached = min(there, self.request.prompt_tokens - 1)
        position = self.request.prompt_tokens + len(self._ids)
        token = executor.tokens(self.id)[position]
        self._ids.append(token)
        text = self._text_of(token, ended=ended)
        found = self._stops.found
        reason = None
        if ended or found is not None:
            reason = FinishReason.LENGTH if not stopped and found is None else FinishReason.STOP
        likely = executor.logprobs(self.id, position)
        if likely is not None:
            self._logprobs.append(likely)
        self._text.append(text)
        self._tokens.append(Token(self.id, token, text, self.sampling.sample, likely, reason))
        if reason is not None:
            self._close(reason, stopped_by=token if stopped else found)

    def fail(self, error: str) -> None:
        """Close the books because no next token can be given."""
        self._close(FinishReason.ERROR, error=error)

    def _text_of(self, token: int, *, ended: bool) -> str:
        """The text to show with a token; with the last one, all that was held back."""
        text = self._detokenizer.add(token)
        if ended:
            text += self._detokenizer.finish()
        text = self._stops.add(text)
        return text + self._stops.finish() if ended else text

    def _close(
        self,
        reason: FinishReason,
        *,
        error: str | None = None,
        stopped_by: str | int | None = None,
    ) -> None:
        self.completion = Completion(
            request=self.id,
            prompt_tokens=self.request.prompt_tokens,
            token_ids=tuple(self._ids),
            text="".join(self._text),
            finish_reason=reason,
            error=error,
            sample=self.sampling.sample,
            stopped_by=stopped_by,
            logprobs=tuple(self._logprobs),
            cached_tokens=self._cached,
        )
