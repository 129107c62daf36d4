"""The answers to one prompt: one request for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvhouse.engine.live import LiveRequest
from kvhouse.engine.outputs import Completion, Token
from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.errors import KvhouseError


class Answers:
    """Requests with one prompt, each with chances of its own.

    Args:
        samples: How each of them chooses its tokens.
        submit: Puts one of them into the engine.
        drop: Takes a request out of it, by its id.
        first_alone: Whether the others wait until the first one has computed the prompt, so that
            they find its blocks and share them.
    """

    def __init__(
        self,
        samples: Sequence[SamplingParams],
        submit: Callable[[SamplingParams], LiveRequest],
        drop: Callable[[int], None],
        *,
        first_alone: bool,
    ) -> None:
        self._submit = submit
        self._drop = drop
        self._later = list(samples[1:])
        self.requests = [submit(samples[0])]
        if not first_alone:
            self._begin_the_others()

    @property
    def waiting(self) -> bool:
        """Whether some of them have not been submitted."""
        return bool(self._later)

    @property
    def done(self) -> bool:
        """Whether all have ended."""
        return not self._later and all(live.completion is not None for live in self.requests)

    @property
    def completions(self) -> list[Completion]:
        """Those that have ended, in the order of the samples."""
        return [live.completion for live in self.requests if live.completion is not None]

    def follow(self) -> None:
        """Begin the others once they can share the prompt."""
        if self._later and self.requests[0].prompt_is_there:
            self._begin_the_others()

    def take_tokens(self) -> list[Token]:
        """The tokens that came since the last call."""
        return [token for live in self.requests for token in live.take_tokens()]

    def raise_error(self) -> None:
        """Raise what went wrong with one of them.

        Raises:
            KvhouseError: No token could be found for a position.
        """
        for completion in self.completions:
            if completion.error is not None:
                raise KvhouseError(completion.error)

    def cancel(self) -> None:
        """Drop all of them and everything they hold; those that have ended are left alone."""
        self._later.clear()
        for live in self.requests:
            self._drop(live.id)

    def _begin_the_others(self) -> None:
        while self._later:
            self.requests.append(self._submit(self._later[0]))
            del self._later[0]
