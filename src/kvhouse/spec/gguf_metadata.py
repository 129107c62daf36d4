"""The metadata of a GGUF file, and what llama.cpp's code adds for each architecture."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from kvhouse.spec.config import MOST_SIZE
from kvhouse.spec.fields import Fields, show


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """Every architecture of llama.cpp: what its metadata leaves out, or why it is refused."""
    text = Path(__file__).with_name("gguf_architectures.json").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = json.loads(text)
    return entries


class Metadata(Fields):
    """The metadata of one architecture, read by what follows the architecture's name in a key."""

    def __init__(self, values: dict[str, object], where: str, architecture: str) -> None:
        """Wrap ``values``, all metadata of a file."""
        super().__init__(values, where)
        self.values = values
        self.architecture = architecture
        self.entry = architectures()[architecture]

    def key(self, name: str) -> str:
        """The key in the file."""
        return f"{self.architecture}.{name}"

    def size(self, name: str, most: int = MOST_SIZE) -> int:
        """A whole number above 0 that must be there."""
        return self.integer(self.key(name), most)

    def maybe(self, name: str, most: int = MOST_SIZE) -> int | None:
        """A whole number above 0; None where it is absent or 0, which mean the same."""
        return self.optional_integer(self.key(name), most, least=0) or None

    def each(self, name: str, layers: int) -> list[int] | None:
        """One whole number for each of ``layers``, which may be one for all; None if absent."""
        value = self.values.get(self.key(name))
        if not isinstance(value, list):
            number = self.optional_integer(self.key(name), MOST_SIZE, least=0)
            return None if number is None else [number] * layers
        if len(value) < layers or not all(
            isinstance(item, int) and 0 <= item <= MOST_SIZE for item in value
        ):
            problem = f"is {show(value)}, not a whole number for each of {layers} layers"
            raise self.error(self.key(name), problem)
        return [int(item) for item in value[:layers]]
