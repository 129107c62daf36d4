"""The server: the engine over HTTP, as OpenAI's API."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kvhouse.errors import KvhouseError
from kvhouse.server.address import bind, url_of
from kvhouse.server.settings import ServerSettings

if TYPE_CHECKING:
    from kvhouse.server.app import make_app
    from kvhouse.server.desk import Desk
    from kvhouse.server.listen import serve
    from kvhouse.server.sight import describe

__all__ = [
    "Desk",
    "ServerSettings",
    "bind",
    "describe",
    "make_app",
    "serve",
    "url_of",
]

_LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")
if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
    raise KvhouseError(
        f"the server cannot start without {', '.join(missing)}: "
        "pip install 'kvhouse[engine,server]'"
    )

# Imported on first use, since they import the engine, and an address that is taken, say, is told
# sooner than that takes.
_HOMES = {
    "Desk": "kvhouse.server.desk",
    "describe": "kvhouse.server.sight",
    "make_app": "kvhouse.server.app",
    "serve": "kvhouse.server.listen",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    if name not in _HOMES:
        raise AttributeError(f"module 'kvhouse.server' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
