"""What may be shown of an untrusted text: no secrets, no control characters, not much of it."""

from __future__ import annotations

import re

#: Characters that a shown line keeps.
MOST_SHOWN = 240
#: Escape sequences: colours and cursors, titles, and single characters; also as JSON writes ESC.
ESCAPES = re.compile(
    rb"(?:\x1b|\\u001[bB])(?:\[[0-?]{0,24}[ -/]{0,4}[@-~]|\][^\x07\x1b\n]{0,256}\x07?|[@-Z\\^_])"
)
_SECRETS = (
    # Keys that name themselves: Hugging Face, OpenAI, GitHub, GitLab, AWS, Google, Slack, JWT.
    re.compile(
        r"\b(?:hf_|sk-|gh[opsu]_|github_pat_|glpat-|AKIA|ASIA|AIza|xox[abprs]-|eyJ)"
        r"[\w.\-]{6,512}"
    ),
    re.compile(r"(?i)\bbearer\s{1,4}[\w.\-+/=]{6,512}"),
    # Values of options and fields whose names say that they are secret.
    re.compile(
        r"(?i)((?:api[_-]?keys?|token|secrets?|passw(?:or)?ds?|authorization|credentials?)['\"]?"
        r"\s{0,4}[=: ]\s{0,4}['\"]?)(?!None\b|null\b|True\b|False\b|[\d.,]{1,20}\b)"
        r"[^\s'\",;)]{4,512}"
    ),
    re.compile(r"(?i)(://)[^\s/@:]{1,128}:[^\s/@]{1,128}(?=@)"),
)
_HOMES = re.compile(r"((?:/home|/Users|\\Users|[A-Z]:/Users)[/\\]{1,2})[^/\\\s'\",:]{1,128}")
_HIDDEN = "***"


def mask(text: str) -> str:
    """A text that can be shown: secrets and names of users hidden, on one short line."""
    shown = ESCAPES.sub(b"", text.encode("utf-8", "replace")).decode("utf-8", "replace")
    shown = shown[: 4 * MOST_SHOWN]
    for secret in _SECRETS:
        shown = secret.sub(lambda found: (found[1] if found.re.groups else "") + _HIDDEN, shown)
    shown = _HOMES.sub(rf"\1{_HIDDEN}", shown)
    shown = "".join(character if character.isprintable() else " " for character in shown)
    shown = " ".join(shown.split())
    return shown if len(shown) <= MOST_SHOWN else shown[: MOST_SHOWN - 1] + "…"
