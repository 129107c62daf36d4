"""A load's target behind HTTP: any server with OpenAI's /v1/completions."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from kvhouse.bench.http_answers import Answer, short, words_of_body
from kvhouse.bench.target import Ask, Failed, Piece, Usage
from kvhouse.bench.text_prompts import text_of
from kvhouse.errors import KvhouseError
from kvhouse.web.proxy import proxy_for

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

#: Seconds for a connection to come about, and for the questions before the load.
CONNECT_TIMEOUT = 10.0
PROBE_TIMEOUT = 120.0
_PROBE_TOKENS = 8
#: Bytes of an error's body that are read.
_MOST_BODY = 2**16
#: Ids below this are tokens of nearly every model.
DEFAULT_VOCAB = 32_000


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a server wants to be asked.

    Attributes:
        ids: Whether it takes prompts as token ids; otherwise as text.
        ignore_eos: Whether it takes ``ignore_eos``, an extension of vLLM's, SGLang's,
            llama.cpp's and kvhouse's; otherwise an answer may end before it is as long as asked.
    """

    ids: bool = True
    ignore_eos: bool = True


#: Tried in this order.
DIALECTS = (Dialect(), Dialect(ignore_eos=False), Dialect(ids=False), Dialect(False, False))


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is, and what it wants to know.

    Attributes:
        url: Its address, with or without ``/v1``.
        model: The model's name there; by default the first that it lists.
        api_key: Sent as a bearer token, and never shown.
        vocab_size: Prompts are ids below it.

    Raises:
        KvhouseError: The address is none, or carries a password.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    vocab_size: int = DEFAULT_VOCAB

    def __post_init__(self) -> None:
        from urllib.parse import urlsplit

        try:
            parts = urlsplit(self.url)
            known = parts.scheme in ("http", "https") and bool(parts.hostname)
            known = known and (parts.port is None or parts.port > 0)
        except ValueError:
            known = False
        if not known or parts.query or parts.fragment or not self.url.isprintable():
            raise KvhouseError("the URL is none of a server: write it like http://127.0.0.1:8000")
        if parts.username is not None or parts.password is not None:
            raise KvhouseError(
                "the URL carries a name or a password: leave them out and give --api-key"
            )
        if self.vocab_size < 1:
            raise KvhouseError("--vocab-size is at least 1")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise KvhouseError("the API key has characters that no header can carry")

    @property
    def base(self) -> str:
        """The address that endpoints are under."""
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    def hide(self, text: str) -> str:
        """A text without the key, should a server repeat it."""
        return text.replace(self.api_key, "***") if self.api_key else text

    def words(self, error: Exception) -> str:
        """What an error of the client says, in a line."""
        return short(self.hide(str(error)) or type(error).__name__)


class HTTPTarget:
    """Sends requests to a server.

    Args:
        client: With the server's headers.
        server: Where it is; the model is named.
        dialect: How it wants to be asked.
    """

    def __init__(self, client: AsyncClient, server: Server, dialect: Dialect) -> None:
        self.about = {
            "target": server.url,
            "model": str(server.model),
            "prompts": "ids" if dialect.ids else "text",
            "end_of_sequence": "ignored" if dialect.ignore_eos else "heeded",
        }
        self.vocab_size = server.vocab_size
        self._client = client
        self._server = server
        self._dialect = dialect

    @classmethod
    @asynccontextmanager
    async def connect(cls, server: Server) -> AsyncIterator[Self]:
        """Find out the model's name and how the server wants to be asked.

        Raises:
            KvhouseError: httpx2 is not installed, the environment names a proxy that is not known,
                nobody answers, or the server takes no way of asking.
        """
        async with _client(server) as client:
            if server.model is None:
                server = replace(server, model=await _first_model(client, server))
            yield await cls._probed(client, server)

    @classmethod
    async def _probed(cls, client: AsyncClient, server: Server) -> Self:
        """The target with the first dialect that is understood."""
        import asyncio

        ids = random.Random(0).choices(range(server.vocab_size), k=_PROBE_TOKENS)
        failures = []
        for dialect in DIALECTS:
            target = cls(client, server, dialect)
            try:
                async with asyncio.timeout(PROBE_TIMEOUT):
                    async for _ in target.ask(Ask(ids, 1)):
                        pass
            except Failed as failure:
                if failure.kind not in ("http_400", "http_422", "http_500", "http_501"):
                    raise _refusal(server, failure) from None
                failures.append(failure)
            except TimeoutError:
                late = f"{server.url}: no answer within {PROBE_TIMEOUT:g} s"
                raise KvhouseError(late) from None
            else:
                return target
        raise _refusal(server, failures[0])

    async def ask(self, request: Ask) -> AsyncGenerator[Piece | Usage, None]:
        """See ``Target.ask``."""
        import httpx2

        answer = Answer()
        try:
            url = f"{self._server.base}/completions"
            async with self._client.sse(url, method="POST", json=self._body(request)) as events:
                if events.response.status_code != 200:
                    raise await self._refused(events.response)
                async for event in events:
                    for part in answer.read(self._server.hide(event.data)):
                        yield part
        except httpx2.SSEError as error:
            raise Failed("malformed", self._server.words(error)) from None
        except httpx2.TimeoutException as error:
            raise Failed("timeout", self._server.words(error)) from None
        except (httpx2.ConnectError, httpx2.InvalidURL) as error:
            raise Failed("connection", self._server.words(error)) from None
        except httpx2.RequestError as error:
            raise Failed("cut", self._server.words(error)) from None
        if not answer.ended:
            raise Failed("cut", "the stream ended before the answer did")

    def _body(self, request: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._server.model,
            "prompt": request.prompt if self._dialect.ids else text_of(request.prompt),
            "max_tokens": request.new_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._dialect.ignore_eos:
            body["ignore_eos"] = True
        return body

    async def _refused(self, response: Response) -> Failed:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) >= _MOST_BODY:
                break
        wait = retry_after(response.headers.get("retry-after"))
        return _failed(self._server, response.status_code, body, wait)


def require_httpx2() -> Any:  # noqa: ANN401 - a module
    """The module.

    Raises:
        KvhouseError: It is not installed.
    """
    try:
        import httpx2
    except ImportError:
        raise KvhouseError("to load a server needs httpx2: pip install 'kvhouse[load]'") from None
    return httpx2


def _client(server: Server) -> AsyncClient:
    """What asks a server, by the one rule for proxies."""
    httpx2 = require_httpx2()
    key, proxy = server.api_key, proxy_for(server.base)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    # Of a client with a transport or a proxy of its own, the environment's proxies are left alone.
    transport = None if proxy else httpx2.AsyncHTTPTransport(limits=limits)
    client: AsyncClient = httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
        limits=limits,
        proxy=proxy,
        transport=transport,
    )
    return client


def retry_after(header: str | None) -> float | None:
    """The seconds that a ``Retry-After`` names; a date, which needs a common clock, is none."""
    text = (header or "").strip()
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


async def _first_model(client: AsyncClient, server: Server) -> str:
    httpx2 = require_httpx2()
    try:
        response = await client.get(f"{server.base}/models", timeout=PROBE_TIMEOUT)
    except (httpx2.RequestError, httpx2.InvalidURL) as error:
        raise _refusal(server, Failed("connection", server.words(error))) from None
    if response.status_code != 200:
        raise _refusal(server, _failed(server, response.status_code, response.content))
    try:
        name = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        name = None
    if not isinstance(name, str):
        raise KvhouseError(f"{server.url}: lists no model: name one with --served-model")
    return name


def _refusal(server: Server, failure: Failed) -> KvhouseError:
    """Why there can be no load, for people."""
    advice = {
        "connection": "start a server there, or check the address",
        "http_401": "give its key in KVHOUSE_API_KEY or with --api-key",
        "http_403": "give its key in KVHOUSE_API_KEY or with --api-key",
        "http_404": "it must have OpenAI's /v1/completions and the model of --served-model",
    }.get(failure.kind, "a first request of 8 random tokens came to nothing")
    return KvhouseError(f"{server.url}: {failure.kind}: {failure.reason}; {advice}")


def _failed(server: Server, status: int, body: bytes, wait: float | None = None) -> Failed:
    """An answer with an error's status."""
    text = server.hide(body.decode("utf-8", "replace"))
    return Failed(f"http_{status}", words_of_body(text), wait)
