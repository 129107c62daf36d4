"""Prompts as text, for servers that take no token ids."""

from __future__ import annotations

from collections.abc import Sequence

#: Short words that most tokenizers know as one token each, with the space before them.
_TEXT = (
    "the of and to in is that it was for on are as with his they at be this have from or one had "
    "by word but not what all were we when your can said there use an each which she do how their "
    "if will up other about out many then them these so some her would make like him into time has "
    "look two more write go see number no way could people my than first water been call who oil "
    "its now find long down day did get come made may part"
)
_WORDS = _TEXT.split()


def text_of(ids: Sequence[int]) -> str:
    """A text of as many words as there are ids, the same words for the same ids.

    So prompts that begin alike as ids do so as texts. How many tokens that makes is the server's
    to say.
    """
    return " ".join(_WORDS[number % len(_WORDS)] for number in ids)
