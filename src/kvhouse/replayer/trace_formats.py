"""The formats of text that traces come in, and how a file's first line tells them apart."""

from __future__ import annotations

import json
from dataclasses import dataclass

from kvhouse.replayer.trace_lines import AZURE_HEADER, LineParser, parse_azure, parse_mooncake

#: Lines of an access log that a later one may overtake: it is written as requests end.
LOG_WINDOW = 2**16

_OWN_KEYS = ("arrival", "output_tokens")
_MOONCAKE_KEYS = ("input_length", "output_length", "hash_ids")
_LOG_KEYS = ("usage", "response", "created", "created_at", "error")
_CSV_COLUMNS = ("arrival", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class TextFormat:
    """One format.

    Attributes:
        name: What it is called.
        parse: Takes a line's text; raises ``ValueError`` with the reason.
        has_header: Whether the first line is no request.
        ticks: Units of a line's time in a second.
        from_first: Whether time 0 is the first request's; otherwise it is that of the file.
        window: How many lines a request may come too late; 0 where order is asked for.
    """

    name: str
    parse: LineParser
    has_header: bool = False
    ticks: int = 10**9
    from_first: bool = True
    window: int = 0


def format_of(first_line: str) -> TextFormat:
    """The format of a file that begins so.

    Raises:
        ValueError: None of them, with the reason.
    """
    if first_line == AZURE_HEADER:
        return TextFormat("azure-csv", parse_azure, has_header=True)
    if first_line.startswith("{"):
        return _json_format(first_line)
    if any(name in first_line.split(",") for name in _CSV_COLUMNS):
        from kvhouse.replayer.trace_rows import csv_parser

        parse = csv_parser(first_line)
        return TextFormat("csv", parse, has_header=True, ticks=1, from_first=False)
    raise ValueError(
        f"neither the header {AZURE_HEADER}, nor one with {', '.join(_CSV_COLUMNS)}, "
        "nor a JSON object"
    )


def _json_format(line: str) -> TextFormat:
    try:
        keys = json.loads(line).keys()
    except (ValueError, RecursionError):
        keys = ()  # whichever parser: it says what is wrong
    if any(key in keys for key in _LOG_KEYS):
        from kvhouse.replayer.access_log import parse_access_log

        return TextFormat("access-log", parse_access_log, window=LOG_WINDOW)
    if any(key in keys for key in _OWN_KEYS):
        from kvhouse.replayer.trace_rows import parse_json_row

        return TextFormat("jsonl", parse_json_row, ticks=1, from_first=False)
    if keys and not any(key in keys for key in _MOONCAKE_KEYS):
        raise ValueError(
            "a JSON object without arrival and prompt_tokens (kvhouse's own format), "
            "input_length (Mooncake) or usage (access log)"
        )
    return TextFormat("mooncake", parse_mooncake)
