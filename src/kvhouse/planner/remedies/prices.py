"""What is known of a remedy's price: accuracy, with its source, and what it asks for."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

#: Accuracy of what changes only where numbers lie.
UNCHANGED = "unchanged: the same numbers are computed"
#: Latency of the same.
NONE = "none"

#: What storing keys and values in a narrower format costs in accuracy, by the format's name. A
#: figure stands for the model and the text that it was measured on and for no other.
_KNOWN = {
    "int8": (
        "known for llama.cpp's q8_0, which has a scale for 32 elements: perplexity 6.2322 -> "
        "6.2344 (llama.cpp PR 7412)"
    ),
    "fp8": (
        "unknown for this model: needs a scale for each vector, as kvhouse counts; with one "
        "uncalibrated scale of 1.0 accuracy is lost in silence"
    ),
    "int4": (
        "loses accuracy where KV heads are few: needs per-channel keys (KIVI, arXiv 2402.02750) or "
        "a rotation of Q, K and V before rounding (llama.cpp PR 21038); plain 4-bit keys took "
        "Llama-3.1-8B from perplexity 8.8493 to 9.0502 (llama.cpp PR 21192)"
    ),
}


def accuracy_of(kv_format: str) -> str:
    """What is known of a format's accuracy, and what ``kvhouse quality`` measured of it."""
    return f"{_KNOWN[kv_format]}; {measured(kv_format)}; measure it on your model"


def measured(kv_format: str) -> str:
    """The recorded measurement of a format, rotated where that is what the engine does."""
    report = _recorded()
    rotated = kv_format == "int4"
    (found,) = (
        each
        for each in report["results"]
        if each["variant"] == {"kv_format": kv_format, "rotated": rotated}
    )
    turned = ", rotated," if rotated else ""
    return (
        f"on {report['model']}{turned} kvhouse quality measured a perplexity "
        f"{found['perplexity_change']:+.2%} and the same likeliest token in "
        f"{found['top1_agreement']:.1%}"
    )


@cache
def _recorded() -> dict[str, Any]:
    """What ``kvhouse quality smollm2 --json`` printed."""
    place = files("kvhouse") / "data" / "quality" / "smollm2.json"
    report: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return report


def standing(accuracy: str) -> str:
    """What is known of an accuracy, in a word: ``unchanged``, ``known``, ``unknown``, ``loses``."""
    return accuracy.partition(":")[0].partition(" ")[0]


ACCURACY_OF_WEIGHTS = "unknown: depends on how the checkpoint was quantised"

#: Models with latents keep one vector for all heads, which rotation does not help.
LATENT_INT4 = "unknown: these layers keep latents, for which rotation does not help"
