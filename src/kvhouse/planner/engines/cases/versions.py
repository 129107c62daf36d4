"""Which release a thread's words mean: a number, or the releases around a month."""

from __future__ import annotations

import re

from kvhouse.planner.engines.cases.case import Case

#: vLLM's release at the end of each month (its releases page), for threads that state a date only.
_VLLM = {
    (2023, 9): "0.2.0",
    (2024, 1): "0.2.7",
    (2024, 2): "0.3.2",
    (2024, 4): "0.4.1",
    (2024, 6): "0.5.0",
    (2024, 8): "0.5.5",
    (2024, 9): "0.6.2",
    (2024, 11): "0.6.4",
    (2025, 1): "0.7.0",
    (2025, 2): "0.7.3",
    (2025, 3): "0.8.2",
    (2025, 4): "0.8.5",
    (2025, 5): "0.9.0",
    (2025, 6): "0.9.1",
    (2025, 7): "0.10.0",
    (2025, 9): "0.10.2",
    (2025, 10): "0.11.0",
    (2025, 12): "0.13.0",
    (2026, 1): "0.14.0",
    (2026, 2): "0.16.0",
    (2026, 4): "0.19.0",
    (2026, 5): "0.20.1",
    (2026, 6): "0.21.0",
    (2026, 8): "0.24.0",
    (2026, 10): "0.33.0",
}
#: llama.cpp's build numbers, latest first, and the month of each.
_BUILDS = (
    (8000, (2026, 2)),
    (7000, (2025, 11)),
    (6000, (2025, 7)),
    (5000, (2025, 4)),
    (4000, (2024, 11)),
    (3000, (2024, 5)),
    (2000, (2024, 1)),
)


def vllm_versions(case: Case) -> list[str | None]:
    """The release that is stated, or those around a date, the likeliest first."""
    number = _number(case.version)
    if case.version.startswith("0.1.dev"):  # a build of the main branch without a tag
        return [None]
    if number is not None:
        return [number]
    month = case.month()
    if month is None:
        return [None, "0.20.0"]
    releases = list(_VLLM.items())
    index = max((n for n, (when, _) in enumerate(releases) if when <= month), default=0)
    around = [index, index + 1, index - 1]
    return [releases[n][1] for n in around if 0 <= n < len(releases)]


def month_versions(case: Case) -> list[str | None]:
    """A month, for engines without release numbers; what is not dated may be any time."""
    month = case.month() or _month_of_build(case.version)
    if month is None:
        return [None, "2024.1"]
    return [f"{month[0]}.{month[1]}", None, "2024.1"]


def _month_of_build(text: str) -> tuple[int, int] | None:
    """About when a numbered build of llama.cpp was made."""
    found = re.search(r"\bb?(\d{4,5})\b", text)
    if found is None:
        return None
    return next((month for build, month in _BUILDS if int(found[1]) >= build), None)


def sglang_versions(case: Case) -> list[str | None]:
    """SGLang's release: 0.5 came in August 2025."""
    number, month = _number(case.version), case.month()
    if number is not None:
        return [number]
    if month is None:
        return [None, "0.4"]
    return ["0.4", None] if month < (2025, 8) else [None, "0.4"]


def _number(text: str) -> str | None:
    """The first release number in a text, which is no date."""
    found = re.search(r"(?<![\d.])v?(\d{1,2}(?:\.\d{1,3}){1,2})(?![\d])", text)
    return found[1] if found else None
