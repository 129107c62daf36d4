"""What the bodies of all requests take together, and no more than is allowed."""

from __future__ import annotations

from kvhouse.server.errors import ApiError

#: Seconds after which it is worth asking again; some request will have ended by then.
_RETRY_AFTER = "1"


class Held:
    """Counts bytes of bodies from the first that comes until their request has been answered.

    Args:
        most: Bytes that all requests may hold together.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.left = most

    def share(self) -> Share:
        """One request's part, which is to be closed in the end."""
        return Share(self)


class Share:
    """What one request holds."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._taken = 0

    def take(self, size: int) -> None:
        """Take so many more bytes.

        Raises:
            ApiError: 503, where there is no room for them now.
        """
        if size > self._held.left:
            raise ApiError(
                503,
                f"the bodies of all requests take {self._held.most:,} bytes: try again later",
                code="overloaded",
                headers={"retry-after": _RETRY_AFTER},
            )
        self._held.left -= size
        self._taken += size

    def close(self) -> None:
        """Give everything back."""
        self._held.left += self._taken
        self._taken = 0
