"""What the bodies of all requests take together, and no more than is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvhouse.server.errors import ApiError

#: Seconds after which it is worth asking again; some request will have ended by then.
_RETRY_AFTER = "1"


class Held:
    """Counts bytes of bodies from the first that comes until their request has been answered.

    Args:
        most: Bytes that all requests may hold together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """One request's part: gives what takes so many more bytes; all go back in the end.

        What it gives raises ``ApiError``, 503, where there is no room for them now.
        """
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self._left:
                raise ApiError(
                    503,
                    f"the bodies of all requests take {self._most:,} bytes: try again later",
                    code="overloaded",
                    headers={"retry-after": _RETRY_AFTER},
                )
            self._left -= size
            taken += size

        try:
            yield take
        finally:
            self._left += taken
