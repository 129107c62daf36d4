"""An answer on its way: from the request to its last byte, or until the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from kvhouse.engine import Completion, SamplingParams
from kvhouse.engine.asked import Asked, Given
from kvhouse.engine.prompt_thread import Prompts
from kvhouse.errors import KvhouseError, RequestRejected
from kvhouse.server.desk import Desk
from kvhouse.server.errors import ApiError, error_body
from kvhouse.server.forms import DONE, ChatForm, CompletionForm, event
from kvhouse.server.timing import Timing

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

#: Seconds for which a client may leave the last event of a stream that failed.
_LAST_WORDS = 5.0


class _Gone(Exception):
    """The client has gone away."""


class Answer(Response):
    """Answers one request, as a stream or whole.

    Args:
        desk: What all requests share.
        form: What the answer looks like.
        prepare: Makes the prompts.
        prompts: How many there will be.
        most_tokens: The longest answer; None for all that there is room for.
        sampling: How tokens are chosen.
        n: Answers to each prompt.
        streamed: Whether tokens are sent as they come.
        with_usage: Whether a stream says in the end what it took.
    """

    def __init__(
        self,
        desk: Desk,
        form: CompletionForm | ChatForm,
        prepare: Callable[[Prompts], Awaitable[list[list[int]]]],
        prompts: int,
        most_tokens: int | None,
        sampling: SamplingParams,
        n: int,
        *,
        streamed: bool,
        with_usage: bool,
    ) -> None:
        super().__init__()
        self._desk = desk
        self._form = form
        self._prepare = prepare
        self._count = prompts * n
        self._most_tokens = most_tokens
        self._sampling = sampling
        self._n = n
        self._streamed = streamed
        self._with_usage = with_usage
        self._timing = Timing(desk.metrics)
        self._started = False
        #: Tokens of its prompts, until something comes of them: what is refused does not count.
        self._uncounted = 0
        self._let_go: Callable[[int], None]
        #: When the event loop's clock says that it has taken too long.
        self._deadline: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and say in the metrics how it ended.

        Raises:
            ApiError: It cannot be answered, and nothing was sent yet.
        """
        outcome = "failed"
        self._deadline = scope["kvhouse.deadline"]
        try:
            with self._desk.admitted(self._count) as self._let_go:
                await self._answer(scope, receive, send)
            outcome = "finished"
        except _Gone:
            outcome = "disconnected"
        except TimeoutError:
            outcome = "timeout"
            seconds = self._desk.settings.request_seconds
            error = ApiError(503, f"no answer within {seconds:g} s", code="timeout")
            await self._fail(error, send)
        except RequestRejected as error:
            outcome = "refused"
            raise ApiError(400, str(error)) from None
        except ApiError:
            outcome = "refused"
            raise
        except KvhouseError as error:
            if self._desk.closing:
                text = "the server ended before the answer did"
                await self._fail(ApiError(503, text, code="shutting_down"), send)
            else:
                await self._fail(ApiError(500, str(error)), send)
        except Exception:  # a step that failed; the log gets it from whoever called
            if self._started:
                await self._fail(
                    ApiError(500, "the engine failed; the server's log says why"), send
                )
            raise
        finally:
            self._desk.metrics.requests.labels(outcome).inc()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        desk = self._desk
        async with asyncio.timeout_at(self._deadline):
            prompts = await self._prepare(desk.prompts)
        most = desk.room_for(prompts, self._most_tokens)
        self._uncounted = sum(map(len, prompts))
        asked = desk.engine.ask(prompts, most, self._sampling, self._n, salt=scope["kvhouse.salt"])
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self._deadline, asked.give, TimeoutError())
        watch = asyncio.create_task(_watch(receive, asked))
        try:
            if self._streamed:
                await self._stream(asked, prompts, send)
            else:
                await self._whole(asked, prompts, scope, receive, send)
        finally:
            desk.engine.drop(asked)
            timer.cancel()
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _take(self, asked: Asked) -> Given:
        """What comes next, taken note of."""
        tokens, completions = await asked.take()
        self._desk.metrics.prompt_tokens.inc(self._uncounted)
        self._uncounted = 0
        self._timing.note(tokens, self._n)
        self._let_go(sum(token.finish_reason is not None for _, token in tokens))
        return tokens, completions

    async def _whole(
        self, asked: Asked, prompts: list[list[int]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        completions = None
        while completions is None:
            _, completions = await self._take(asked)
        _raise_errors(completions)
        self._desk.took(self._timing.passed)
        body = self._form.whole(prompts, completions)
        response = JSONResponse(body, headers={"x-request-id": self._form.id})
        await response(scope, receive, send)

    async def _stream(self, asked: Asked, prompts: list[list[int]], send: Send) -> None:
        form, n = self._form, self._n
        completions = None
        while completions is None:
            tokens, completions = await self._take(asked)
            if tokens:
                chunks = [form.chunk(place * n + token.sample, token) for place, token in tokens]
                await self._send_in_time("".join(chunks).encode(), send)
        _raise_errors(completions)
        self._desk.took(self._timing.passed)
        last = form.usage_chunk(prompts, completions) if self._with_usage else b""
        await self._send_in_time(last + DONE, send, more=False)

    async def _send_in_time(self, body: bytes, send: Send, *, more: bool = True) -> None:
        """Send a piece; one that a client has not taken when its time is over, it never will."""
        async with asyncio.timeout_at(self._deadline):
            await self._send(body, send, more=more)

    async def _send(self, body: bytes, send: Send, *, more: bool = True) -> None:
        """Send a piece of a stream, and before the first one its headers."""
        if not self._started:
            headers = [*_STREAM_HEADERS, (b"x-request-id", self._form.id.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self._started = True
        await send({"type": "http.response.body", "body": body, "more_body": more})

    async def _fail(self, error: ApiError, send: Send) -> None:
        """Say what went wrong: by the status, or as the last event of a stream that has begun."""
        if not self._started:
            raise error
        body = error_body(error.status_code, error.detail, error.param, error.code)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await self._send(event(body) + DONE, send, more=False)


async def _watch(receive: Receive, asked: Asked) -> None:
    """End the wait for tokens as soon as the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    asked.give(_Gone())


def _raise_errors(completions: list[Completion]) -> None:
    for completion in completions:
        if completion.error is not None:
            raise KvhouseError(completion.error)
