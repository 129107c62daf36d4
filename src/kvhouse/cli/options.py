"""Options that several commands share, and how their texts become values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.errors import KvhouseError
from kvhouse.units import parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from kvhouse.replayer import SLO

Model = Annotated[
    str,
    typer.Argument(
        help="Catalogue name such as llama-2-7b, directory with a config.json, config or GGUF "
        "file, or org/name of the Hugging Face Hub, of which only config and headers are read. "
        "A wrong name is answered with the closest ones."
    ),
]
ModelName = Annotated[
    str, typer.Option("--model", help="Catalogue name, directory, config or GGUF file.")
]
Device = Annotated[
    str,
    typer.Option(
        help="A name that `kvhouse devices` lists, such as h100-80g or rtx-4090; m4-max:64GiB "
        "where the memory varies; a device file.json; or local: this machine, measured."
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="SIZE",
        help="Memory for keys and values: 2GiB, 512MiB, 2GB. "
        "By default what the device has left after reserve and weights.",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        metavar="TOKENS",
        help="Longest request, prompt and output together; contiguous reserves it for each. "
        "By default the model's limit.",
    ),
]
KvFormat = Annotated[str, typer.Option("--kv-format", help="bf16, fp16, fp32, fp8, int8 or int4.")]
WeightDtype = Annotated[
    str | None,
    typer.Option(
        "--weight-dtype",
        help="float32, bfloat16, float16, fp8, fp8-block, int8, int4, mxfp4, mxfp8, nvfp4 or nf4. "
        "By default as the model is published.",
    ),
]
BlockSize = Annotated[int, typer.Option("--block-size", metavar="TOKENS", help="Tokens per block.")]
Watermark = Annotated[
    float, typer.Option(help="Share of the pool that paged admissions keep free for growth.")
]
Utilization = Annotated[
    float, typer.Option(help="Share of the device's memory that the engine may use.")
]
Policy = Annotated[
    str,
    typer.Option(
        help="paged: blocks as needed. One run of memory for each: contiguous-max (or contiguous) "
        "for --max-length, contiguous-pow2 for the output rounded up, contiguous-oracle for what "
        "it will be."
    ),
]
Policies = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME[,NAME]",
        help="paged (the default): blocks as needed. contiguous-max: --max-length reserved for "
        "each. contiguous-pow2: its output rounded up to a power of two. contiguous-oracle: its "
        "true length. Several are compared.",
    ),
]
FromLog = Annotated[
    str | None,
    typer.Option(
        "--from-log",
        metavar="FILE",
        help="Take --kv-blocks from the log of an engine that served this model.",
    ),
]
PrefixCache = Annotated[
    bool,
    typer.Option(
        "--prefix-cache",
        help="Share the blocks of prefixes that the trace names; with --compare, paged both "
        "without and with it.",
    ),
]
Tp = Annotated[
    int,
    typer.Option(
        "--tp", metavar="N", help="Devices sharing every layer; bytes are those of one of them."
    ),
]
SloShare = Annotated[
    float,
    typer.Option("--slo-share", help="With --find: share of the requests that must meet the SLO."),
]
Timeline = Annotated[
    int | None,
    typer.Option(metavar="N", help="With --json: the pool over time, as means of N equal bins."),
]
Compare = Annotated[
    bool,
    typer.Option("--compare", help="Drive several policies, all four by default, side by side."),
]
Find = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="max-rate: the highest rate of arrivals that meets the SLO. min-memory: the fewest "
        "blocks that do, or without an SLO, with which no request is rejected or preempted.",
    ),
]
Events = Annotated[
    str | None,
    typer.Option(
        "--events",
        metavar="FILE",
        help="Write everything that happens to a request as a line of JSON.",
    ),
]
Trace = Annotated[
    str,
    typer.Argument(
        help="File (Azure CSV, Mooncake JSONL, access log, or JSONL, CSV or Parquet of kvhouse's "
        "own), bundled slice (azure-conv-2023, mooncake-conv), or generated traffic: "
        "poisson:rate=2,lengths=sharegpt,requests=100."
    ),
]
Backlog = Annotated[
    bool,
    typer.Option(
        "--backlog", help="Let all requests wait from the start, whatever their arrival times."
    ),
]
TokenBudget = Annotated[
    int, typer.Option("--token-budget", metavar="TOKENS", help="Most tokens computed in a step.")
]
MaxRunning = Annotated[
    int, typer.Option("--max-running", metavar="N", help="Most requests that hold memory at once.")
]
PlanLog = Annotated[
    str | None,
    typer.Option(
        "--plan-log",
        metavar="FILE",
        help="Write every step plan as a line of JSON; replay and run of one backlog "
        "give the same file.",
    ),
]
Html = Annotated[
    str | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page that shows who held which block over time, where the bytes were, and "
        "how long requests took; it needs no network.",
    ),
]
Png = Annotated[
    str | None,
    typer.Option("--png", metavar="FILE", help="Write the same as an image (extra `plots`)."),
]
Svg = Annotated[
    str | None,
    typer.Option("--svg", metavar="FILE", help="Write the same as a drawing (extra `plots`)."),
]
Lang = Annotated[str, typer.Option("--lang", help="Language of the page and the images: en or zh.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys instead.")]


@dataclass(frozen=True, slots=True)
class SloOptions:
    """What requests should meet."""

    slo_ttft: Annotated[
        str | None,
        typer.Option("--slo-ttft", metavar="TIME", help="SLO: time to first token, such as 1s."),
    ] = None
    slo_tpot: Annotated[
        str | None,
        typer.Option(
            "--slo-tpot", metavar="TIME", help="SLO: time per output token, such as 50ms."
        ),
    ] = None
    slo_latency: Annotated[
        str | None,
        typer.Option("--slo-latency", metavar="TIME", help="SLO: arrival to last token."),
    ] = None

    def slo(self) -> SLO | None:
        """The SLO; None where nothing is asked.

        Raises:
            KvhouseError: A time is none.
        """
        from kvhouse.replayer import SLO

        limits = [seconds(text) for text in (self.slo_ttft, self.slo_tpot, self.slo_latency)]
        return SLO(*limits) if any(limits) else None


def size(text: str | None) -> int | None:
    """The bytes that a size option names, if it was given."""
    return None if text is None else parse_bytes(text)


def rate(text: str | None) -> float | None:
    """The bytes per second that an option names, if it was given."""
    return None if text is None else parse_rate(text)


def part(text: str) -> tuple[int, int]:
    """The number and the count that ``K/N`` names.

    Raises:
        KvhouseError: It names none.
    """
    number, count = (whole(word) for word in text.partition("/")[::2])
    if number is None or count is None:
        raise KvhouseError(f"replica {text[:40]!r}: write for example 1/2, the first of two")
    return number, count


def whole(text: str) -> int | None:
    """The whole number of up to nine digits that a text is; None for any other text."""
    return int(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None


def seconds(text: str | None) -> float | None:
    """The seconds that an option names, if it was given."""
    return None if text is None else parse_seconds(text)


def pair(text: str) -> tuple[str, str]:
    """An engine's option as name and value.

    Raises:
        KvhouseError: It is not of the form ``name=value``.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise KvhouseError(f"engine option {text!r}: write it as name=value")
    return name, value


def names(text: str) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
