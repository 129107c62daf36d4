"""Puts a page together: its texts and figures as HTML, its data, its style and its script."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from kvhouse.views.page.data import data_of
from kvhouse.views.page.sections import drive_section, figures_table, headline
from kvhouse.views.page.texts import texts_of
from kvhouse.views.palette import css
from kvhouse.views.picture import Picture

#: The script's parts, each of which uses those before it.
_SCRIPTS = ("base.js", "chart.js", "pool_map.js", "areas.js", "lines.js", "page.js")


def page(picture: Picture, language: str = "en") -> str:
    """The whole page as HTML.

    Args:
        picture: What it shows.
        language: One of ``LANGUAGES``.

    Raises:
        KvhouseError: No such language.
    """
    texts = texts_of(language)
    style = css() + _asset("page.css")
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    words = {**texts.script, **texts.classes, "timing": texts.timing(picture.timing)}
    data = {**data_of(picture), "texts": words}
    drives = picture.drives
    return Template(_asset("page.html")).substitute(
        lang=escape(texts.html_lang),
        title=escape(texts.say("title", count=len(drives))),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        style=style,
        script=script,
        data=_embedded(data),
        headline=headline(picture, texts),
        drives="".join(drive_section(drive, n, texts) for n, drive in enumerate(drives)),
        table=figures_table(picture, texts),
        **{name: escape(text) for name, text in texts.page.items()},
    )


def _asset(name: str) -> str:
    return (files("kvhouse.views.page") / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """What a content security policy names inline content by."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in, whatever names it holds."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # all but ASCII is escaped
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text
