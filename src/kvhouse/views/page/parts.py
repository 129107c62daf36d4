"""The parts of a page that needs nothing from elsewhere: its style, its scripts and its data."""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any


def asset(name: str, package: str = "kvhouse.views.page") -> str:
    """One of the files that pages are made of."""
    return (files(package) / name).read_text(encoding="utf-8")


def hash_of(content: str) -> str:
    """What a content security policy names inline content by."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # all but ASCII is escaped
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text
