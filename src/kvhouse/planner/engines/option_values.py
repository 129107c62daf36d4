"""The values that an engine's options take: read from texts, and checked by type and range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show

#: No size, count or length is larger.
MOST = 2**50

#: Options that may be 0, beside all that end in ``_bytes``.
_MAY_BE_ZERO = frozenset({"speculative_tokens", "blocks", "tokens"})
#: Ratios of two amounts; every other fraction is a share of a whole.
_RATIOS = frozenset({"mamba_ratio"})
_FLAGS = {"true": True, "false": False, "1": True, "0": False}


def from_texts(options: type[Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Read the texts of options that ``options`` has; unknown names are left as they are.

    Args:
        options: A class of options, whose annotations say what each takes.
        texts: Values as they were written; ``none`` leaves an option at the engine's default.

    Raises:
        KvhouseError: A text is not of its option's type; the message names the option.
    """
    kinds = _kinds(options)
    return {
        name: _read(name, text.strip(), kinds[name]) if name in kinds else text
        for name, text in texts.items()
    }


def check(options: type[Any], values: Mapping[str, object]) -> None:
    """Refuse values that their options cannot have.

    Raises:
        KvhouseError: A value is of the wrong type or out of range; the message names the option.
    """
    kinds = _kinds(options)
    for name, value in values.items():
        kind = kinds[name]
        if value is None and "None" in kind:
            continue
        if "int" in kind:
            _check_count(name, value)
        elif "float" in kind:
            _check_share(name, value)
        elif ("bool" in kind and not isinstance(value, bool)) or (
            "str" in kind and not isinstance(value, str)
        ):
            raise KvhouseError(f"engine option {name} {show(value)}: give {_wanted(kind)}")


def flags(options: Any, names: Mapping[str, str]) -> list[str]:  # noqa: ANN401 - any class of them
    """Command-line flags for the options that are not at their defaults.

    Args:
        options: The options that were chosen.
        names: The flag of each option that has one; an option that is true is a flag alone.
    """
    found = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in names and value not in (None, False, field.default):
            flag = names[field.name]
            found.append(flag if value is True else f"{flag} {value}")
    return found


def _kinds(options: type[Any]) -> dict[str, tuple[str, ...]]:
    """For each option the types of its annotation, such as ``("int", "None")``."""
    return {field.name: tuple(str(field.type).split(" | ")) for field in fields(options)}


def _read(name: str, text: str, kind: tuple[str, ...]) -> object:
    if text.lower() == "none" and "None" in kind:
        return None
    readers: dict[str, Callable[[str], object]] = {
        "int": int,
        "float": float,
        "bool": lambda text: _FLAGS[text.lower()],
        "str": str,
    }
    reader = readers.get(kind[0])
    if reader is None:
        raise KvhouseError(f"engine option {name}: takes no text; give it through the Python API")
    try:
        return reader(text)
    except (ValueError, KeyError):
        raise KvhouseError(f"engine option {name} {show(text)}: give {_wanted(kind)}") from None


def _wanted(kind: tuple[str, ...]) -> str:
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}
    return words[kind[0]] + (", or none for the engine's default" if "None" in kind else "")


def _check_count(name: str, value: object) -> None:
    least = 0 if name in _MAY_BE_ZERO or name.endswith("_bytes") else 1
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not least <= int(str(value)) <= MOST:
        raise KvhouseError(
            f"engine option {name} {show(value)}: give a whole number from {least} to {MOST:,}"
        )


def _check_share(name: str, value: object) -> None:
    most = math.inf if name in _RATIOS else 1
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 < float(str(value)) <= most or math.isinf(float(str(value))):
        upper = "" if name in _RATIOS else " and at most 1"
        raise KvhouseError(f"engine option {name} {show(value)}: give a number above 0{upper}")
