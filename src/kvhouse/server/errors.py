"""Errors in the shape of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from kvhouse.server.requests import UNSUPPORTED
from kvhouse.spec.fields import show

#: Names of parameters; those of pydantic's kinds are none, or ``str``.
_NAME = re.compile(r"(?!str$|int$)\w+")
_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An answer with a status that says what is wrong.

    Args:
        status: HTTP status.
        message: What was wrong and what to do, in a line.
        param: The parameter of the request that it is about.
        code: A word for programs.
        headers: To be sent beside it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """What is sent."""
        return error_body(self.status_code, self.detail, self.param, self.code)


def about_to_end() -> ApiError:
    """Says that the server takes nothing new."""
    return ApiError(503, "the server is about to end", code="shutting_down")


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI's API writes it."""
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def answer_http_exception(_request: Request, error: Exception) -> JSONResponse:
    """Answer with what a handler, or the router, raised."""
    assert isinstance(error, HTTPException)
    body = error.body() if isinstance(error, ApiError) else None
    if body is None:
        body = error_body(error.status_code, str(error.detail))
    return JSONResponse(body, error.status_code, error.headers)


async def answer_invalid(_request: Request, error: Exception) -> JSONResponse:
    """Answer a body that is no request, with the first thing that is wrong with it."""
    assert isinstance(error, RequestValidationError)
    found: list[Mapping[str, Any]] = list(error.errors())
    first = found[0]
    if first["type"] == "json_invalid":
        return JSONResponse(error_body(400, f"the body is no JSON: {first['ctx']['error']}"), 400)
    # Where a parameter may be one of several kinds, there is a reason for each; those that came
    # further fit better.
    paths = [_path(one) for one in found]
    longest = max((path for path in paths if path[:1] == paths[0][:1]), key=len)
    param = show(".".join(longest))[1:-1] if longest else None
    if longest and longest[0] in UNSUPPORTED:
        param = longest[0]
        message = f"{param} is not supported: leave it out"
    elif first["type"] == "extra_forbidden":
        message = f"unknown or unsupported parameter: {param}: leave it out"
    else:
        pairs = zip(found, paths, strict=True)
        reasons = [str(one["msg"]) for one, path in pairs if path == longest]
        reason = ", or: ".join(dict.fromkeys(reasons)).removeprefix("Value error, ")
        message = f"{param}: {reason}" if param else reason
    return JSONResponse(error_body(400, message, param), 400)


def _path(error: Mapping[str, Any]) -> list[str]:
    """The parameter that an error is about, without the names of the kinds it might have been."""
    path = error["loc"][1:]
    # What was sent may have any name; it stands first, or last where that name is not known.
    sent = {0, len(path) - 1} if error["type"] == "extra_forbidden" else {0}
    return [str(part) for at, part in enumerate(path) if at in sent or _is_name(part)]


def _is_name(part: object) -> bool:
    return isinstance(part, int) or _NAME.fullmatch(str(part)) is not None


async def answer_crash(_request: Request, _error: Exception) -> JSONResponse:
    """Answer what nobody foresaw; the log has more."""
    return JSONResponse(error_body(500, "the server failed; its log says why"), 500)
