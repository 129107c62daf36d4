"""The way to a server: directly, or through a proxy that the environment names.

One rule for all that asks servers: what runs on this machine is asked directly, whatever the
environment says, since no proxy elsewhere can reach it. Any other server is asked through
``HTTP_PROXY`` or ``HTTPS_PROXY`` by the address's scheme, else ``ALL_PROXY``, unless ``NO_PROXY``
names its host or domain; the names count in small letters too.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kvhouse.errors import KvhouseError

_LOCAL = "localhost"


def proxy_for(url: str) -> str | None:
    """The proxy through which an address is asked; None for directly.

    Args:
        url: An address of http or https.

    Raises:
        KvhouseError: The environment names a proxy that is none of http or https.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_this_machine(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    named = getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if not proxy:
        return None
    return _checked(proxy if "://" in proxy else f"http://{proxy}", host)


def _checked(proxy: str, host: str) -> str:
    """The proxy, if it is one; nothing is shown of it, since it may hold a password."""
    way_out = f"set NO_PROXY={host} to ask the server directly"
    try:
        parts = urlsplit(proxy)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise KvhouseError(f"the environment names a proxy that has no address: {way_out}")
    if parts.scheme not in ("http", "https"):
        raise KvhouseError(
            f"the environment names a proxy of kind {parts.scheme}, and only http and https are "
            f"known: {way_out}"
        )
    return proxy


def is_this_machine(host: str) -> bool:
    """Whether a host is this machine by its name or number, without asking any name server."""
    name = host.rstrip(".").lower()
    if name == _LOCAL or name.endswith(f".{_LOCAL}"):
        return True
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    # The unspecified address is where a server listens that listens everywhere.
    return address.is_loopback or address.is_unspecified
