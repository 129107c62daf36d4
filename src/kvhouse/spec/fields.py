"""Outside input as named fields: each is checked as it is read, and named when it is wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvhouse.errors import SpecError


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """An integer, by its size where Python refuses to write its digits."""
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 2, 3, 3
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 60
#: Most characters of a value that is shown.
_LONGEST = 200


def show(value: object) -> str:
    """A value on one short line, without control characters."""
    text = _SHORT.repr(value)
    # Escaped characters of a list's members make it longer than the limits above say.
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def show_path(path: Path | str) -> str:
    """A path as it is, or quoted where it holds characters that would break a line."""
    text = str(path)
    return text if text.isprintable() else repr(text)


class Fields:
    """A mapping from outside, read field by field.

    Every method raises ``SpecError`` with a line that names the source and the field. A null
    counts as an absent field. Booleans are not integers, and integers are not booleans.

    Hand-written because only integers, flags and strings are ever read: a validation library
    would take longer to import than a whole plan takes to compute.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        where: str,
        aliases: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Wrap ``values``.

        Args:
            values: What the source says.
            where: The source, for messages.
            aliases: For a field's standard name, the names it has in this source.
        """
        self._values = values
        self._aliases = aliases or {}
        self.where = where

    def error(self, name: str, problem: str) -> SpecError:
        """The error for one field, to be raised by the caller."""
        return SpecError(f"{self.where}: field {name!r} {problem}")

    def _find(self, name: str) -> tuple[str, object]:
        """The name under which the source states the field, and its value or None."""
        names = self._aliases.get(name, (name,))
        stated = [(n, self._values[n]) for n in names if self._values.get(n) is not None]
        if not stated:
            return names[0], None
        for other, value in stated[1:]:
            if value != stated[0][1]:
                raise self.error(other, f"contradicts field {stated[0][0]!r}")
        return stated[0]

    def states(self, name: str) -> bool:
        """Whether the source mentions the field at all, be it with a null."""
        return any(other in self._values for other in self._aliases.get(name, (name,)))

    def stated_name(self, name: str) -> str:
        """The name that a message about the field should use."""
        return self._find(name)[0]

    def optional_integer(self, name: str, most: int, least: int = 1) -> int | None:
        """A whole number from ``least`` to ``most``, or None when the field is absent."""
        shown, value = self._find(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(shown, f"is {show(value)}, not a whole number from {least} to {most}")
        return value

    def integer(self, name: str, most: int) -> int:
        """A whole number from 1 to ``most``; the field must be there."""
        value = self.optional_integer(name, most)
        if value is None:
            raise self.error(self.stated_name(name), "is missing")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false, or ``default`` when the field is absent."""
        shown, value = self._find(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(shown, f"is {show(value)}, neither true nor false")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None when the field is absent."""
        shown, value = self._find(name)
        if value is not None and not isinstance(value, str):
            raise self.error(shown, f"is {show(value)}, not a string")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty when the field is absent."""
        shown, value = self._find(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(shown, f"is {show(value)}, not a list of strings")
        return value
