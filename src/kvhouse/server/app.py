"""The application: paths, what they take and what they answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from kvhouse.engine import Engine, SamplingParams
from kvhouse.engine.prompt_thread import Prompts
from kvhouse.errors import KvhouseError
from kvhouse.server.answer import Answer
from kvhouse.server.desk import Desk
from kvhouse.server.documents import FIGURES, MODEL, MODELS, STREAMED, documented, errors
from kvhouse.server.errors import (
    ApiError,
    about_to_end,
    answer_crash,
    answer_http_exception,
    answer_invalid,
)
from kvhouse.server.forms import ChatForm, CompletionForm
from kvhouse.server.gate import Gate
from kvhouse.server.requests import ChatRequest, CompletionRequest, Sampling
from kvhouse.server.sight import PoolSight, look, state
from kvhouse.views.live import LANGUAGES, live_page
from kvhouse.views.pool_state import MOST_CELLS

#: Tokens of an answer to ``/v1/completions`` where nothing is said, as in OpenAI's API.
_DEFAULT_MAX_TOKENS = 16
#: Blocks that ``/kv`` draws where nothing is said.
_CELLS = 2048
#: Seconds after which ``/metrics`` shows the pool as it was and does not wait for the step's end.
_PATIENCE = 5.0


class App(FastAPI):
    """An application that describes itself as it is."""

    model = ""

    def openapi(self) -> dict[str, Any]:
        """Its description, without answers that it never gives."""
        if self.openapi_schema is None:
            self.openapi_schema = documented(super().openapi(), self.model)
        return self.openapi_schema


def make_app(desk: Desk) -> App:
    """The application over one engine; it ends the engine when it ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await desk.close()

    app = App(title="kvhouse", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.model = desk.settings.model
    app.add_middleware(Gate, desk=desk)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(Exception, answer_crash)
    _add_answers(app, desk)
    _add_models(app, desk)
    _add_figures(app, desk)
    return app


def _add_answers(app: App, desk: Desk) -> None:
    @app.post("/v1/completions", responses=STREAMED | errors(400, 401, 404, 408, 413, 429, 503))
    async def completions(asking: CompletionRequest) -> Response:
        """Go on from one or several prompts."""
        desk.require_model(asking.model)
        prompts = asking.prompts

        async def prepare(made: Prompts) -> list[list[int]]:
            return await made.of(prompts)

        return Answer(
            desk,
            CompletionForm(asking.model, desk.prompts.text),
            prepare,
            len(prompts),
            asking.max_tokens or _DEFAULT_MAX_TOKENS,
            _params(asking, asking.logprobs),
            asking.answers,
            streamed=bool(asking.stream),
            with_usage=asking.wants_usage,
        )

    @app.post(
        "/v1/chat/completions", responses=STREAMED | errors(400, 401, 404, 408, 413, 429, 503)
    )
    async def chat(asking: ChatRequest) -> Response:
        """Give the next answer of a conversation."""
        desk.require_model(asking.model)
        turns = [message.turn() for message in asking.messages]

        async def prepare(made: Prompts) -> list[list[int]]:
            return [await made.of_chat(turns)]

        return Answer(
            desk,
            ChatForm(asking.model, desk.prompts.text),
            prepare,
            1,
            asking.most_tokens,
            _params(asking, asking.named),
            asking.answers,
            streamed=bool(asking.stream),
            with_usage=asking.wants_usage,
        )


def _params(asking: Sampling, logprobs: int | None) -> SamplingParams:
    try:
        return asking.params(logprobs)
    except KvhouseError as error:
        raise ApiError(400, str(error)) from None


def _add_models(app: App, desk: Desk) -> None:
    model = {
        "id": desk.settings.model,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "kvhouse",
        "max_model_len": desk.max_length,
    }

    @app.get("/v1/models", responses=MODELS | errors(401))
    async def models() -> Response:
        """The model that this server has."""
        return JSONResponse({"object": "list", "data": [model]})

    @app.get("/v1/models/{name:path}", responses=MODEL | errors(401, 404))
    async def one_model(name: str) -> Response:
        """The model of that name."""
        desk.require_model(name)
        return JSONResponse(model)


def _add_figures(app: App, desk: Desk) -> None:
    begun = time.monotonic()
    pages = {language: live_page(desk.settings.model, language) for language in LANGUAGES}

    @app.get("/health", responses=errors(503))
    async def health() -> Response:
        """Whether the server takes requests."""
        if desk.closing or not desk.engine.alive:
            raise about_to_end()
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", responses=FIGURES | errors(401))
    async def metrics() -> Response:
        """Figures in Prometheus' text format."""
        sight: PoolSight | None = None
        try:
            async with asyncio.timeout(_PATIENCE):
                sight = await desk.engine.look(lambda engine: look(engine, 1))
        except (TimeoutError, KvhouseError):
            pass
        return Response(desk.metrics.render(sight), media_type=CONTENT_TYPE_LATEST)

    @app.get("/kv", responses=errors(400, 401, 503))
    async def kv(
        cells: Annotated[
            int, Query(ge=1, le=MOST_CELLS, description="The most blocks to draw.")
        ] = _CELLS,
    ) -> Response:
        """The pool between two steps: every byte by class, and who holds which blocks."""

        def now(engine: Engine) -> dict[str, Any]:
            passed = time.monotonic() - begun
            return state(engine, desk.settings.model, passed, desk.totals, cells)

        try:
            return JSONResponse(await desk.engine.look(now))
        except KvhouseError as error:
            raise ApiError(503, str(error), code="shutting_down") from None

    @app.get("/ui", response_class=HTMLResponse, responses=errors(400))
    async def ui(lang: Literal["en", "zh"] = "en") -> Response:
        """The pool in a browser, live."""
        return HTMLResponse(pages[lang])
