"""What the doctor says, in each language."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kvhouse.doctor.diagnoses.base import Diagnosis, Remedy
from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show

LANGUAGES = ("en", "zh")


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one language.

    Attributes:
        words: Headings and what stands around figures.
        parts: The parts of the memory bar.
        rules: Engines' rules that explain figures.
        diagnoses: A title and a reason for each.
        remedies: A sentence for each.
    """

    words: dict[str, str]
    parts: dict[str, str]
    rules: dict[str, str]
    diagnoses: dict[str, dict[str, str]]
    remedies: dict[str, str]

    def say(self, name: str, /, **values: object) -> str:
        """One of ``words`` with its values filled in."""
        return self.words[name].format(**values)

    def title(self, diagnosis: Diagnosis) -> str:
        """A diagnosis in a few words."""
        return self.diagnoses[diagnosis.code]["title"].format(**dict(diagnosis.values))

    def reason(self, diagnosis: Diagnosis) -> str:
        """What a diagnosis rests on."""
        return self.diagnoses[diagnosis.code]["reason"].format(**dict(diagnosis.values))

    def remedy(self, remedy: Remedy) -> str:
        """What a remedy is."""
        return self.remedies[remedy.code].format(**dict(remedy.values))


@cache
def texts_of(language: str) -> Texts:
    """The texts of a language.

    Raises:
        KvhouseError: It is none of ``LANGUAGES``.
    """
    if language not in LANGUAGES:
        raise KvhouseError(f"language {show(language)}: choose one of {', '.join(LANGUAGES)}")
    text = (files("kvhouse.doctor") / f"texts.{language}.json").read_text(encoding="utf-8")
    return Texts(**json.loads(text))
