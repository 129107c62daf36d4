"""What a page and an image say, in each language they can be written in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show
from kvhouse.views.page.parts import asset

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one language.

    Attributes:
        html_lang: The language as HTML names it.
        page: What stands once on a page.
        parts: What is filled in by Python.
        classes: The ledger's classes.
        image: What an image is labelled with.
        script: What the script fills in.
    """

    html_lang: str
    page: dict[str, str]
    parts: dict[str, str]
    classes: dict[str, str]
    image: dict[str, str]
    script: dict[str, str]

    def say(self, name: str, /, **values: object) -> str:
        """One of ``parts`` with its values filled in."""
        return self.parts[name].format(**values)

    def timing(self, timing: str) -> str:
        """What times are, as results name it."""
        return self.parts.get(timing, timing)


@cache
def texts_of(language: str) -> Texts:
    """The texts of a language.

    Raises:
        KvhouseError: It is none of ``LANGUAGES``.
    """
    if language not in LANGUAGES:
        raise KvhouseError(f"language {show(language)}: choose one of {', '.join(LANGUAGES)}")
    return Texts(**json.loads(asset(f"texts.{language}.json")))
