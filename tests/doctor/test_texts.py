"""Both languages say everything, with the same values."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kvhouse.doctor.bar import PARTS
from kvhouse.doctor.texts import LANGUAGES, texts_of
from kvhouse.errors import KvhouseError

SOURCE = Path(texts_of.__wrapped__.__code__.co_filename).parent


def flat(values: dict[str, Any], path: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return found


def fields(text: str) -> set[str]:
    return set(re.findall(r"{(\w+)}", text))


def test_no_translation_is_left_out() -> None:
    english, chinese = (flat(asdict(texts_of(language))) for language in LANGUAGES)
    assert set(english) == set(chinese)
    for key, text in english.items():
        assert fields(text) == fields(chinese[key]), key
        if text and not re.fullmatch(r"[\w\s{}]*", text):
            assert re.search(r"[\u4e00-\u9fff]", chinese[key]), key


def _codes(pattern: str) -> set[str]:
    sources = [path.read_text() for path in SOURCE.glob("diagnoses/*.py")]
    return {code for text in sources for code in re.findall(pattern, text)}


def test_every_diagnosis_and_remedy_has_its_texts() -> None:
    texts = texts_of("en")
    told = set(texts.diagnoses)
    source = "".join(path.read_text() for path in SOURCE.glob("diagnoses/*.py"))
    assert {code for code in told if f'"{code}"' not in source} == set()
    assert {code for code in texts.remedies if f'"{code}"' not in source} == set()
    changed = _codes(r"\.change\(\s*\"(\w+)\"") | _codes(r"Remedy\(\s*\"(\w+)\"")
    assert changed == set(texts.remedies)
    assert set(PARTS) == set(texts.parts)


def test_a_language_that_is_not_there_is_refused() -> None:
    with pytest.raises(KvhouseError, match="choose one of en, zh"):
        texts_of("fr")
