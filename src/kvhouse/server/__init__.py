"""The server: the engine over HTTP, as OpenAI's API."""

from kvhouse.errors import KvhouseError

try:
    import fastapi as _fastapi  # noqa: F401
    import prometheus_client as _prometheus_client  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    raise KvhouseError(
        f"the server cannot start ({error}): pip install 'kvhouse[engine,server]'"
    ) from error

from kvhouse.server.app import make_app
from kvhouse.server.desk import Desk
from kvhouse.server.listen import bind, serve, url_of
from kvhouse.server.room import require_room
from kvhouse.server.settings import ServerSettings
from kvhouse.server.sight import describe

__all__ = [
    "Desk",
    "ServerSettings",
    "bind",
    "describe",
    "make_app",
    "require_room",
    "serve",
    "url_of",
]
