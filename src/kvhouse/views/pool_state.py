"""What ``GET /kv`` gives, checked before anything of it is shown: the server may be anyone's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from kvhouse.errors import KvhouseError
from kvhouse.spec.fields import show

#: What ``/kv`` draws at most.
MOST_CELLS = 16384
#: Characters of a name that are shown.
_LONGEST = 200
#: More bytes, tokens or requests than there are anywhere.
_MANY = 2**63

Count = Annotated[int, Field(ge=0, lt=_MANY)]
Seconds = Annotated[float, Field(ge=0, lt=1e12)]


def _shown(text: str) -> str:
    """A name that can be printed; escape codes would lead the terminal."""
    return text if text.isprintable() and len(text) <= _LONGEST else show(text)


Name = Annotated[str, AfterValidator(_shown)]
Class = Literal["used", "shared", "reserved", "internal", "external", "cached", "free"]


class _Part(BaseModel):
    """Keys that a later version may add are passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _Pool(_Part):
    policy: Name
    kv_format: Name
    block_tokens: Count
    block_bytes: Count
    blocks: Count
    bytes: Count
    max_length: Count
    max_running: Count
    prefix_cache: bool


class _Blocks(_Part):
    used: Count
    shared: Count
    reserved: Count
    internal: Count
    external: Count
    cached: Count
    free: Count


class _Ledger(_Blocks):
    total: Count
    saved: Count


class _Totals(_Part):
    steps: Count
    computed_tokens: Count
    generated_tokens: Count
    admitted_tokens: Count
    found_tokens: Count
    preemptions: Count
    seconds: Seconds
    decode_seconds: Seconds
    decode_bytes: Count | None


class _Request(_Part):
    id: Count
    state: Literal["running", "waiting"]
    prompt_tokens: Count
    generated_tokens: Count
    max_new_tokens: Count
    computed_tokens: Count
    found_tokens: Count
    preemptions: Count
    blocks: Count


class _Cells(_Part):
    first: Count
    count: Count
    owned_by: Count | None = Field(alias="request")
    kind: Class = Field(alias="class")


class _State(_Part):
    model: Name
    seconds: Seconds
    pool: _Pool
    ledger: _Ledger
    blocks: _Blocks
    running: Count
    waiting: Count
    totals: _Totals
    requests: list[_Request]
    cells: Count
    map: list[_Cells]

    @model_validator(mode="after")
    def _draws_what_was_asked(self) -> _State:
        if sum(run.count for run in self.map) > MOST_CELLS:
            raise ValueError(f"draws more than {MOST_CELLS:,} blocks")
        return self


def read_state(content: bytes, where: str) -> Mapping[str, Any]:
    """What a server says of its pool: the keys that are known, each of its kind.

    Args:
        content: What it sent.
        where: Its address, for messages.

    Raises:
        KvhouseError: It is nothing that a kvhouse server sends; the first reason is given.
    """
    try:
        return _State.model_validate_json(content).model_dump(by_alias=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        reason = f"{place}: {first['msg']}" if place else first["msg"]
        raise KvhouseError(
            f"{where}: answers, but is no kvhouse server of this version ({_shown(reason)})"
        ) from None
