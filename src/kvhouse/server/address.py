"""The address that a server listens at; taken before anything that takes long."""

from __future__ import annotations

import socket

from kvhouse.errors import KvhouseError


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, before anything that takes long; it does not listen yet.

    Args:
        host: A name or an address of this machine.
        port: 0 for any that is free.

    Raises:
        KvhouseError: The address is taken, or there is no such address here.
    """
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError, OverflowError) as error:
        raise KvhouseError(f"host {host!r}: no address of this machine ({error})") from None
    made = socket.socket(family, kind, protocol)
    try:
        # Without it, the connections of a server that was killed would hold the port for minutes.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise taken(host, port, error) from None
    return made


def url_of(bound: socket.socket) -> str:
    """Where clients find a server."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def taken(host: str, port: int, error: OSError) -> KvhouseError:
    """Why nobody can listen at an address."""
    return KvhouseError(
        f"cannot listen at {host} port {port}: {error.strerror}; name another with --port"
    )
