"""Errors in the shape of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from kvhouse.spec.fields import show

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
    first: Mapping[str, Any] = error.errors()[0]
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    param = show(".".join(path))[1:-1] if path else None
    if first["type"] == "extra_forbidden":
        message = f"unknown or unsupported parameter: {param}"
    elif first["type"] == "json_invalid":
        message, param = f"the body is no JSON: {first['ctx']['error']}", None
    else:
        reason = str(first["msg"]).removeprefix("Value error, ")
        message = f"{param}: {reason}" if param else reason
    return JSONResponse(error_body(400, message, param), 400)


async def answer_crash(_request: Request, _error: Exception) -> JSONResponse:
    """Answer what nobody foresaw; the log has more."""
    return JSONResponse(error_body(500, "the server failed to answer; its log says why"), 500)
