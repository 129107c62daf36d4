"""``kvhouse serve``."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import answering, engine_options, options
from kvhouse.cli.engine_options import TieredOptions
from kvhouse.cli.groups import grouped
from kvhouse.cli.output import print_json, warn
from kvhouse.errors import KvhouseError
from kvhouse.units import bytes_text, parse_bytes

if TYPE_CHECKING:
    from kvhouse.engine import EngineConfig

#: Where API keys are looked for, besides ``--api-key``.
KEYS_VARIABLE = "KVHOUSE_API_KEY"

#: Seconds for which a Python thread may keep the others waiting. The engine's thread and the
#: event loop take turns with each token, and the usual 5 ms would be noticed in every one.
_SWITCH_INTERVAL = 0.0005


@dataclass(frozen=True, slots=True)
class ServeOptions(TieredOptions):
    """A server shares prefixes wherever it can."""

    prefix_cache: engine_options.SharePrefixes = True

    def config(self, dtype: str) -> EngineConfig:
        """See ``EngineOptions.config``; prefixes are shared where the model allows it."""
        return replace(TieredOptions.config(self, dtype), prefix_cache=False)


@grouped
def serve_command(
    model: engine_options.RunModel,
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")
    ] = 8000,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What requests call the model. By default MODEL."),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            help="Who may ask; repeatable. Others on this machine can see options: rather set "
            f"{KEYS_VARIABLE}, with commas between keys. Keys share no cached prefixes.",
        ),
    ] = None,
    dtype: engine_options.Dtype = "float32",
    asked: ServeOptions,
    max_prompt: Annotated[
        int | None,
        typer.Option(
            "--max-prompt",
            metavar="TOKENS",
            help="Longest prompt. By default what --max-length and the pool leave room for.",
        ),
    ] = None,
    max_body: Annotated[
        str, typer.Option("--max-body", metavar="SIZE", help="Longest body of a request.")
    ] = "4MiB",
    max_queue: Annotated[
        int,
        typer.Option(
            "--max-queue", metavar="N", help="Most answers that wait for memory; then status 429."
        ),
    ] = 256,
    max_connections: Annotated[
        int,
        typer.Option(
            "--max-connections",
            metavar="N",
            help="Most connections at once, fewer where the process may open fewer files; then "
            "status 503.",
        ),
    ] = 1000,
    request_time: Annotated[
        str, typer.Option("--request-time", metavar="TIME", help="Longest time for a request.")
    ] = "10min",
    grace_time: Annotated[
        str,
        typer.Option(
            "--grace-time",
            metavar="TIME",
            help="How long running requests may go on after Ctrl-C or SIGTERM.",
        ),
    ] = "30s",
    as_json: options.AsJson = False,
) -> None:
    """Serve a real model on this machine over HTTP, as OpenAI's API.

    Completions, chat, streaming, /metrics, /kv and, in a browser, /ui. Ctrl-C lets requests finish.

    Example: kvhouse serve smollm2 --kv-memory 512MiB

    Example: curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json'
    -d '{"model": "smollm2", "prompt": "The capital of France is"}'
    """
    answering.require(model)

    from kvhouse import server

    settings = server.ServerSettings(
        model=name or model,
        api_keys=(*(api_key or ()), *keys_named()),
        max_body=parse_bytes(max_body),
        max_prompt=max_prompt,
        max_queue=max_queue,
        max_connections=max_connections,
        request_seconds=options.seconds(request_time) or 0.0,
        grace_seconds=options.seconds(grace_time) or 0.0,
    )
    bound = server.bind(host, port)

    from kvhouse.engine import AsyncEngine, Engine

    config = answering.feasible_config(model, asked.config(dtype), dtype, share=asked.prefix_cache)
    engine = Engine(answering.load(model, dtype), config)
    url = server.url_of(bound)
    if not settings.api_keys and not ip_address(bound.getsockname()[0]).is_loopback:
        warn(f"anyone who reaches {url} may ask: give keys in {KEYS_VARIABLE}")
    pool = server.describe(engine)
    desk = server.Desk(AsyncEngine(engine), settings)

    def ready() -> None:
        if as_json:
            print_json(
                {
                    "url": url,
                    "model": settings.model,
                    "process": os.getpid(),
                    "max_model_len": desk.max_length,
                    "pool": pool,
                    "paths": engine.paths.to_dict(),
                }
            )
            sys.stdout.flush()
            return
        held = bytes_text(pool["bytes"])
        answering.say(f"kvhouse: {settings.model} at {url}, {held} of KV; Ctrl-C ends")
        answering.say(f"kvhouse: {engine.paths.line()}")
        if desk.max_length < desk.length_limit:
            answering.say(
                f"kvhouse: requests may have at most {desk.max_length:,} tokens, all that the pool "
                f"holds; a larger --kv-memory allows up to {desk.length_limit:,}"
            )

    # What is there now stays to the end. The collector would look at all of it again and again,
    # and for seconds when the process ends.
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    server.serve(desk, bound, ready, lambda text: answering.say(f"kvhouse: {text}"))


def keys_named() -> tuple[str, ...]:
    """The API keys of the environment; a client takes the first.

    Raises:
        KvhouseError: No header can carry one of them.
    """
    named = os.environ.get(KEYS_VARIABLE, "")
    keys = tuple(key.strip() for key in named.split(",") if key.strip())
    for place, key in enumerate(keys, 1):
        # A key is a secret: the message says which one, and nothing of it.
        if not (key.isascii() and key.isprintable()):
            raise KvhouseError(
                f"{KEYS_VARIABLE}: key number {place} has characters that no header can carry: "
                "give printable ASCII characters, with commas between keys"
            )
    return keys
