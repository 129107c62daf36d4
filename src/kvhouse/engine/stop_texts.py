"""Texts that end an answer, wherever the borders between its tokens lie."""

from __future__ import annotations

from collections.abc import Sequence


class StopTexts:
    """Lets text through until a stop text is complete.

    What may be the beginning of a stop text is held back, so that no part of one is ever shown.
    The text counts as read letter by letter: the first stop text to be complete is the one that
    ends it, so the answer does not depend on how the text is cut into tokens.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._held = ""
        #: The stop text that ended the answer.
        self.found: str | None = None

    def add(self, text: str) -> str:
        """Take more text, and return what can be shown; nothing after a stop text was found."""
        if self.found is not None:
            return ""
        text = self._held + text
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._texts]
        complete = [end for end in ends if end[2] in text]
        if complete:
            end, _, self.found = min(complete)
            self._held = ""
            return text[: end - len(self.found)]
        keep = max((_overlap(text, stop) for stop in self._texts), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Letters at the end of ``text`` with which ``stop`` begins, less than all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
