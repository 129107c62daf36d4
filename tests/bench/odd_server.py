"""A server of completions that misbehaves as the asked model's name says. Run as a process."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

app = FastAPI()
seen: list[dict[str, Any]] = []


def event(content: object) -> str:
    return f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n"


def piece(text: str, reason: str | None = None) -> str:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": reason}]})


def usage(prompt: int, output: int) -> str:
    details = {"prompt_tokens_details": {"cached_tokens": 2}}
    counts = {"prompt_tokens": prompt, "completion_tokens": output, **details}
    return event({"choices": [], "usage": counts})


def refuse(status: int, message: str, **headers: str) -> JSONResponse:
    content = {"error": {"message": message, "type": "t"}}
    return JSONResponse(content, status, {k.replace("_", "-"): v for k, v in headers.items()})


@app.get("/v1/models")
def models() -> dict[str, Any]:
    return {"data": [{"id": "good"}, {"id": "other"}]}


@app.get("/seen")
def what_was_seen() -> list[dict[str, Any]]:
    return seen


@app.post("/v1/completions")
async def completions(request: Request) -> Response:
    body = await request.json()
    key = request.headers.get("authorization", "")
    seen.append({**body, "key": key})
    kind, probe = body["model"], body["max_tokens"] == 1
    ids = isinstance(body["prompt"], list)
    if kind == "secret":
        return refuse(401, f"the key {key} is wrong")
    if kind == "texts" and ids:
        return refuse(400, "prompt must be a string")
    if kind == "strict" and "ignore_eos" in body:
        return refuse(422, "ignore_eos is not allowed")
    if kind == "nothing":
        return refuse(400, "no")
    if kind == "busy" and not probe:
        return refuse(429, "too many", Retry_After="0")
    if kind == "html" and not probe:
        return PlainTextResponse("<html>", 200)
    if kind == "plain-500" and not probe:
        return PlainTextResponse("Traceback:\n  boom", 500)
    tokens = len(body["prompt"]) if ids else len(body["prompt"].split())
    stream = answer("good" if probe else kind, tokens, body["max_tokens"])
    return StreamingResponse(stream, media_type="text/event-stream")


async def answer(kind: str, prompt: int, tokens: int) -> AsyncIterator[str]:
    yield ": a comment\n\n"
    for number in range(tokens):
        if kind == "slow":
            await asyncio.sleep(30)
        if kind == "malformed" and number == 1:
            yield event('{"choices": [{"te')
        if kind == "choiceless" and number == 1:
            yield event({"object": "ping"})
        if kind == "broken" and number == 1:
            yield event({"error": {"message": "out of\nmemory"}})
        if kind == "reset" and number == 1:
            raise ConnectionResetError
        if kind == "cut" and number == 1:
            return
        yield piece("" if number % 2 else "x")
    if kind == "early":
        yield piece("", "abort")
    yield piece("", "length")
    if kind != "uncounted":
        yield usage(prompt, tokens)
    yield event("[DONE]")


if __name__ == "__main__":
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    # Who is told the port may come before uvicorn is ready.
    listening.listen()
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run([listening])
