"""Logs as texts, and what the doctor makes of them."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from kvhouse.doctor import Report, examine

Examine = Callable[..., Report]


@pytest.fixture
def examined() -> Examine:
    """Examines a text."""

    def of(text: str | bytes, model: str | None = None, **options: str) -> Report:
        content = text.encode() if isinstance(text, str) else text
        return examine(io.BytesIO(content), model, options)

    return of
