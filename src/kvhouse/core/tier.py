"""One tier below the device's pool: what lies in which of its slots, and what must stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kvhouse.core.cached_pool import Content
from kvhouse.core.replacement import REPLACEMENTS, Replacement, make_replacement
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout

#: When a block of the pool is stored: once it is full, or once its content must leave the pool.
WRITES = ("through", "back")


@dataclass(frozen=True, slots=True)
class TierConfig:
    """A tier.

    Attributes:
        name: What it is called: ``host``, ``nvme``.
        bytes: Its memory; the tier is the whole blocks in it.
        replacement: How it chooses what to give up: one of ``core.replacement.REPLACEMENTS``.
        write: When a block is stored: ``through`` once it is full, ``back`` once its content
            must leave the pool. A tier below another takes what that one gives up: ``back``.

    Raises:
        KvhouseError: No such replacement or way to write.
    """

    name: str
    bytes: int
    replacement: str = "lru"
    write: str = "back"

    def __post_init__(self) -> None:
        choices = {"replacement": REPLACEMENTS, "write": WRITES}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise KvhouseError(
                    f"tier {self.name}: unknown {name} {value!r}: choose one of {', '.join(known)}"
                )


@dataclass(slots=True)
class TierCounters:
    """What a tier did, in blocks.

    Attributes:
        stored: Written into it, by stores and by moves from the tier above.
        loaded: Read from it into the pool.
        declined: Found in it at an admission, but computed again because that is faster.
        evicted: Given up for others, moved on or not.
        dropped: Forgotten because the only request that could ask for it ended, or because it
            could not be loaded.
        failed: Transfers into it or loads from it that came to nothing.
    """

    stored: int = 0
    loaded: int = 0
    declined: int = 0
    evicted: int = 0
    dropped: int = 0
    failed: int = 0

    @property
    def hits(self) -> int:
        """Blocks found in it at admissions, whatever came of it but a failed load."""
        return self.loaded + self.declined


class Admitted(NamedTuple):
    """Where new content lies, and whose place it took."""

    slot: int
    gone: Content | None


class Tier:
    """Contents by slot.

    What a step under way writes or reads is pinned until ``settle``, and what it writes cannot be
    found before.

    Raises:
        KvhouseError: Not one block fits.
    """

    def __init__(self, config: TierConfig, layout: KVLayout) -> None:
        self.config = config
        self.capacity = layout.blocks_in(config.bytes)
        if not self.capacity:
            raise KvhouseError(
                f"tier {config.name}: {config.bytes:,} bytes hold no block of "
                f"{layout.block_bytes:,} bytes: give it more memory or take smaller blocks"
            )
        self.counters = TierCounters()
        self._policy: Replacement[Content] = make_replacement(config.replacement, self.capacity)
        self._slots: dict[Content, int] = {}
        self._free: list[int] = []
        self._pinned: set[Content] = set()
        self._arriving: set[Content] = set()

    def __contains__(self, content: Content) -> bool:
        """Whether it has the content or is about to."""
        return content in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[tuple[Content, int]]:
        """Every content and its slot."""
        return iter(self._slots.items())

    @property
    def pinned(self) -> int:
        """Contents that a step under way reads or writes."""
        return len(self._pinned)

    @property
    def free_slots(self) -> list[int]:
        """Slots that hold nothing."""
        return [*self._free, *range(len(self._free) + len(self._slots), self.capacity)]

    @property
    def ranked(self) -> list[Content]:
        """Every content as the replacement policy knows it."""
        return list(self._policy)

    def find(self, content: Content) -> int | None:
        """The slot from which the content can be read."""
        return None if content in self._arriving else self._slots.get(content)

    def touch(self, content: Content) -> None:
        """Take note that what it has was asked for."""
        self._policy.touch(content)

    def pin(self, content: Content) -> None:
        """Keep a content where it is until ``settle``."""
        self._pinned.add(content)

    def admit(self, content: Content) -> Admitted | None:
        """Give new content a slot, where it arrives with ``settle``; None if all is pinned."""
        left = self._policy.admit(content, self._pinned)
        if left is None:
            return None
        gone = left[0] if left else None
        if gone is not None:
            slot = self._slots.pop(gone)
            self.counters.evicted += 1
        else:
            # Slots that were never used follow those that are, so a large tier needs no list.
            slot = self._free.pop() if self._free else len(self._slots)
        self._slots[content] = slot
        self._pinned.add(content)
        self._arriving.add(content)
        return Admitted(slot, gone)

    def drop(self, content: Content) -> None:
        """Forget a content between steps, if it is there."""
        if content in self._slots:
            self.counters.dropped += 1
            self._remove(content)

    def reject(self, content: Content) -> None:
        """Forget a content that did not arrive."""
        self._remove(content)

    def settle(self) -> None:
        """Let go of every pin: no transfer is under way any more."""
        self._pinned.clear()
        self._arriving.clear()

    def _remove(self, content: Content) -> None:
        self._free.append(self._slots.pop(content))
        self._policy.drop(content)
