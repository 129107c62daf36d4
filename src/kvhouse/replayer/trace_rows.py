"""A request in kvhouse's own trace format, checked: as a JSON object, as texts, or as values.

The format is documented in docs/traces.md. The model of a row is pydantic's, imported with this
module: it checks a million lines of JSON in about the time that ``json`` takes to parse them.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kvhouse.replayer.trace_lines import MOST_HASH_ID, Line, hash_ids_of
from kvhouse.replayer.trace_request import MOST_SECONDS, MOST_TOKENS
from kvhouse.spec.fields import show

_Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
_Share = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
_HashId = Annotated[int, Field(ge=0, le=MOST_HASH_ID)]
#: A name without control characters, so that it fits any encoding's line.
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Seconds = Annotated[float, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]


class Row(BaseModel):
    """One request as a file of the own format states it."""

    model_config = ConfigDict(strict=True, extra="forbid", str_strip_whitespace=True)

    arrival: Seconds
    prompt_tokens: _Tokens
    output_tokens: _Tokens
    prefix_id: Name | None = None
    prefix_tokens: _Share | None = None
    tenant: Name | None = None
    priority: Priority | None = None
    hash_ids: tuple[_HashId, ...] | None = None
    hash_block: _Tokens | None = None
    cached_tokens: _Share | None = None


#: The columns, in the order in which they are written.
COLUMNS = tuple(Row.model_fields)
#: The columns without which a file is not of this format.
REQUIRED = tuple(name for name, field in Row.model_fields.items() if field.is_required())


def parse_json_row(text: str) -> Line:
    """Parse a line of JSON."""
    return _line(lambda: Row.model_validate_json(text))


def parse_row(values: Mapping[str, Any]) -> Line:
    """Check a row of values as Parquet gives them; None stands for an absent one."""
    present = {name: value for name, value in values.items() if value is not None}
    if isinstance(present.get("hash_ids"), list):
        present["hash_ids"] = tuple(present["hash_ids"])
    return _line(lambda: Row.model_validate(present))


def csv_parser(header: str) -> Callable[[str], Line]:
    """A parser for the rows under this header.

    Raises:
        ValueError: A column is unknown, named twice, or missing.
    """
    names = [name.strip() for name in _cells(header)]
    check_columns(names)

    def parse(text: str) -> Line:
        cells = _cells(text)
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} fields under a header of {len(names)}")
        present = {
            name: cell.strip() for name, cell in zip(names, cells, strict=True) if cell.strip()
        }
        ids = present.pop("hash_ids", "").split()  # pydantic reads no sequences from texts
        return _line(lambda: Row.model_validate_strings(present), _identities(ids))

    return parse


def check_columns(names: list[str]) -> None:
    """Whether these are the columns of the own format.

    Raises:
        ValueError: A column is unknown, named twice, or missing.
    """
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"column {show(name)} is unknown: {', '.join(COLUMNS)} are known")
        if names.count(name) > 1:
            raise ValueError(f"column {name} is there twice")
    for name in REQUIRED:
        if name not in names:
            raise ValueError(f"column {name} is missing")


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong, in one short line."""
    problem = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "json_invalid" or not place:
        return f"not a JSON object: {show(problem['input'])}"
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] == "extra_forbidden":
        return f"{show(place)} is unknown: {', '.join(COLUMNS)} are known"
    reason = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{place} is {show(problem['input'])}: {reason}"


def _cells(text: str) -> list[str]:
    try:
        (cells,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError):
        raise ValueError(f"not a row of CSV: {show(text)}") from None
    return cells


def _identities(texts: list[str]) -> tuple[int, ...]:
    return hash_ids_of(
        [
            int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
            for text in texts
        ]
    )


def _line(check: Callable[[], Row], identities: tuple[int, ...] = ()) -> Line:
    try:
        row = check()
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None
    ids, block, prefix = row.hash_ids or identities, row.hash_block or 1, row.prefix_tokens or 0
    cached = row.cached_tokens or 0
    if (row.prefix_id is None) != (row.prefix_tokens is None):
        raise ValueError("prefix_id and prefix_tokens go together")
    if ids and row.hash_block is None:
        raise ValueError("hash_ids need hash_block, the tokens behind each")
    if len(ids) > -(-(row.prompt_tokens + row.output_tokens) // block):
        raise ValueError(f"{len(ids):,} hash_ids are more than the request has blocks of {block:,}")
    if max(prefix, cached) > row.prompt_tokens:
        raise ValueError(
            f"prefix_tokens or cached_tokens exceed the {row.prompt_tokens:,} prompt's"
        )
    line = Line(row.arrival, row.prompt_tokens, row.output_tokens)
    return line._replace(
        hash_ids=ids,
        hash_block=row.hash_block or line.hash_block,
        prefix_id=row.prefix_id,
        prefix_tokens=prefix,
        tenant=row.tenant,
        priority=row.priority or 0,
        cached_tokens=cached,
    )
