"""A setup as the options of ``kvhouse replay`` that give it again, exactly."""

from __future__ import annotations

import shlex
from dataclasses import fields
from decimal import Decimal

from kvhouse.core.policy import get_policy
from kvhouse.replayer.setup import Setup
from kvhouse.replayer.slo import SLO

#: Options that are their setup's fields, written as they are.
_PLAIN = (
    "kv_blocks", "fit", "prefix_cache", "kv_format", "weight_dtype", "block_size", "max_length",
    "token_budget", "max_running", "order", "prefill_first", "watermark", "utilization", "tp",
)  # fmt: skip

_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_RATES = ((10**9, "GB/s"), (10**6, "MB/s"))


def base_flags(setup: Setup) -> str:
    """Options that differ from their defaults; trace, model and device stand before them."""
    bare = Setup(setup.trace, setup.model, setup.device)
    default = _texts(bare) | dict.fromkeys(_of_trace(bare))
    return _joined(default, _texts(setup) | _of_trace(setup))


def extra_flags(base: Setup, setup: Setup) -> str:
    """Options to add behind those of ``base``, where the last of two counts."""
    return _joined(_texts(base), _texts(setup))


def slo_flags(slo: SLO | None) -> str:
    """Options that name an SLO."""
    if slo is None:
        return ""
    limits = {
        "--slo-ttft": slo.first_token,
        "--slo-tpot": slo.per_token,
        "--slo-latency": slo.latency,
    }
    return _joined({}, {name: seconds_flag(limit) for name, limit in limits.items()})


def _joined(before: dict[str, str | None], after: dict[str, str | None]) -> str:
    words: list[str] = []
    for name, text in after.items():
        if text != before.get(name):
            if text is None:
                raise RuntimeError(f"no option takes {name} back")
            words += [name, text] if text else [name]
    return shlex.join(words)


def _texts(setup: Setup) -> dict[str, str | None]:
    """Every option's text; None where it is left out, and empty where it takes none."""
    tiers = setup.tiering
    texts: dict[str, str | None] = {"--policy": get_policy(setup.policy)}
    texts["--kv-memory"] = _size(setup.kv_memory)
    for name in _PLAIN:
        texts["--" + name.replace("_", "-")] = _plain(getattr(setup, name))
    texts["--backlog"] = _plain(setup.as_backlog)
    texts["--host-memory"] = _size(tiers.host_memory)
    texts["--host-link"] = _rate(tiers.host_link)
    texts["--nvme-memory"] = _size(tiers.nvme_memory)
    texts["--nvme-link"] = _rate(tiers.nvme_link)
    texts["--link-latency"] = seconds_flag(tiers.latency)
    texts["--tier-replacement"], texts["--tier-write"] = tiers.replacement, tiers.write
    texts["--replica"] = "/".join(map(str, setup.replica))
    return texts


def _of_trace(setup: Setup) -> dict[str, str | None]:
    """Options that select from the trace, where they differ from their defaults."""
    selection = setup.trace.selection
    names = {"seed": "--sample-seed", "max_length": "--cut"}
    texts = {}
    for one in fields(selection):
        value = getattr(selection, one.name)
        if value != one.default:
            texts[names.get(one.name, "--" + one.name.replace("_", "-"))] = _plain(value)
    return texts


def _plain(value: object) -> str | None:
    if value is None or value is False:
        return None
    return "" if value is True else str(value)


def _size(size: int | None) -> str | None:
    if size is None:
        return None
    unit, name = next((pair for pair in _SIZES if size % pair[0] == 0), (1, ""))
    return f"{size // unit}{name}"


def _rate(rate: float | None) -> str | None:
    if rate is None:
        return None
    unit, name = next((pair for pair in _RATES if rate % pair[0] == 0), (1, "B/s"))
    return f"{_digits(rate / unit)}{name}"


def seconds_flag(seconds: float | None) -> str | None:
    """A duration that is read as the very same number."""
    return None if seconds is None else f"{_digits(seconds)}s"


def _digits(number: float) -> str:
    """The shortest digits that are read as this number, without an exponent."""
    text = format(Decimal(repr(float(number))), "f")
    return text.removesuffix(".0")
