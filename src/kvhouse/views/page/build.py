"""Puts a page together: its texts and figures as HTML, its data, its style and its script."""

from __future__ import annotations

from html import escape
from string import Template

from kvhouse.views.page.data import data_of
from kvhouse.views.page.parts import asset, embedded, hash_of
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
    style = css() + asset("page.css")
    script = "\n".join(asset(name) for name in _SCRIPTS)
    words = {**texts.script, **texts.classes, "timing": texts.timing(picture.timing)}
    data = {**data_of(picture), "texts": words}
    drives = picture.drives
    return Template(asset("page.html")).substitute(
        lang=escape(texts.html_lang),
        title=escape(texts.say("title", count=len(drives))),
        policy=f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}",
        style=style,
        script=script,
        data=embedded(data),
        headline=headline(picture, texts),
        drives="".join(drive_section(drive, n, texts) for n, drive in enumerate(drives)),
        table=figures_table(picture, texts),
        **{name: escape(text) for name, text in texts.page.items()},
    )
