"""A page that shows a server's pool as it fills and empties; it asks for nothing but ``/kv``."""

from __future__ import annotations

import json
from html import escape
from string import Template
from typing import Any

from kvhouse.core.ledger import LEDGER_CLASSES
from kvhouse.views.page.parts import asset, embedded, hash_of
from kvhouse.views.page.texts import LANGUAGES, texts_of
from kvhouse.views.palette import css

__all__ = ["LANGUAGES", "live_page"]

_HERE = "kvhouse.views.live"
#: The script's parts, each of which uses those before it; the first two draw replays as well.
_SCRIPTS = (("base.js", "kvhouse.views.page"), ("pool_map.js", "kvhouse.views.page"),
            ("shelves.js", _HERE), ("live.js", _HERE))  # fmt: skip


def live_page(model: str, language: str = "en") -> str:
    """The whole page as HTML.

    Args:
        model: What the server calls its model.
        language: One of ``LANGUAGES``.

    Raises:
        KvhouseError: No such language.
    """
    texts = texts_of(language)
    own: dict[str, dict[str, str]] = json.loads(asset(f"texts.{language}.json", _HERE))
    style = css() + asset("page.css") + asset("live.css", _HERE)
    script = "\n".join(asset(*one) for one in _SCRIPTS)
    words = {**texts.script, **texts.classes, **own["script"]}
    data: dict[str, Any] = {"classes": list(LEDGER_CLASSES), "texts": words}
    policy = f"default-src 'none'; connect-src 'self'; img-src data:; style-src {hash_of(style)}"
    return Template(asset("live.html", _HERE)).substitute(
        lang=escape(texts.html_lang),
        model=escape(model),
        policy=f"{policy}; script-src {hash_of(script)}",
        style=style,
        script=script,
        data=embedded(data),
        **{name: escape(text) for name, text in own["page"].items()},
    )
