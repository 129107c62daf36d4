"""The colours of pages and images, told apart by the colour-blind as well.

Hues follow Okabe and Ito 2008; where two are close, their lightness differs, or they are hatched.
"""

from __future__ import annotations

#: By name, for a light and for a dark ground. ``owner-0`` to ``owner-7`` are requests in a memory
#: map, ``line-0`` to ``line-5`` drives in a chart, and the ledger's classes have their own.
LIGHT = {
    "ground": "#ffffff",
    "card": "#ffffff",
    "ink": "#16191d",
    "soft": "#565f69",
    "line": "#d9dee4",
    "panel": "#eef1f4",
    "accent": "#0b63a5",
    "owner-0": "#0072b2",
    "owner-1": "#e69f00",
    "owner-2": "#009e73",
    "owner-3": "#cc79a7",
    "owner-4": "#56b4e9",
    "owner-5": "#d55e00",
    "owner-6": "#6a51a3",
    "owner-7": "#a6a617",
    "cached": "#b4bec9",
    "shared-block": "#16191d",
    "scattered": "#a34a28",
    "used": "#0072b2",
    "shared": "#56b4e9",
    "reserved": "#f0c75e",
    "internal": "#d9722f",
    "external": "#b5669a",
    "free": "#e4e8ec",
    "line-0": "#c2410c",
    "line-1": "#0072b2",
    "line-2": "#009e73",
    "line-3": "#a3467f",
    "line-4": "#8a6d00",
    "line-5": "#16191d",
}
DARK = {
    "ground": "#101317",
    "card": "#171b20",
    "ink": "#e8ebee",
    "soft": "#a4adb7",
    "line": "#333b44",
    "panel": "#252b32",
    "accent": "#6bb6ea",
    "owner-0": "#3d9bd9",
    "owner-1": "#f0b030",
    "owner-2": "#2fc29a",
    "owner-3": "#e09ac4",
    "owner-4": "#8fd0f5",
    "owner-5": "#f0803c",
    "owner-6": "#a08ae0",
    "owner-7": "#d2d24a",
    "cached": "#5a6671",
    "shared-block": "#f2f4f6",
    "scattered": "#d98a68",
    "used": "#3d9bd9",
    "shared": "#8fd0f5",
    "reserved": "#dcb44c",
    "internal": "#d9722f",
    "external": "#c77fb0",
    "free": "#2c333b",
    "line-0": "#f58a5b",
    "line-1": "#5db4ee",
    "line-2": "#35cba2",
    "line-3": "#e39ac8",
    "line-4": "#e0c04a",
    "line-5": "#e8ebee",
}

#: Colours of requests in a memory map.
OWNERS = 8
#: Colours of drives in a chart.
LINES = 6


def css() -> str:
    """Both as custom properties of a style sheet."""
    light, dark = (
        "".join(f"--{name}: {value};" for name, value in colours.items())
        for colours in (LIGHT, DARK)
    )
    return f":root {{{light}}} @media (prefers-color-scheme: dark) {{:root {{{dark}}}}}\n"
