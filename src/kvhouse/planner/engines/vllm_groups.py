"""vLLM, V1 engine: layers in groups of equal size that draw on one pool of blocks.

Source: ``get_kv_cache_groups`` and what it calls in vllm/v1/core/kv_cache_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvhouse.errors import UnsupportedModel
from kvhouse.planner.engines.version import Version
from kvhouse.planner.engines.vllm_options import (
    CLOSE_COUNTS,
    CLOSER_COUNTS,
    IN_FLIGHT_BATCHES,
)
from kvhouse.planner.engines.vllm_pages import Page


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share a block table: their numbers, in the order of ``layer_pages``."""

    page: Page
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """All groups of a model.

    Attributes:
        groups: The groups, in the engine's order.
        pages: Every layer's page after blocks were brought to one size of page.
        uniform: Whether it is one group whose layers may have pages of different sizes.
    """

    groups: tuple[PageGroup, ...]
    pages: tuple[Page, ...]
    uniform: bool

    def pool_block_bytes(self, first: int = 0, end: int | None = None) -> int:
        """Bytes that one block takes of a rank that has the layers from ``first`` to ``end``."""
        last = len(self.pages) if end is None else end
        held = [[one for one in group.members if first <= one < last] for group in self.groups]
        if self.uniform:
            return sum(self.pages[one].bytes for members in held for one in members)
        return max(map(len, held)) * self.groups[0].page.bytes

    @property
    def size(self) -> int:
        """Layers in a group, padding included."""
        return max(len(group.members) for group in self.groups)


def group_pages(name: str, pages: list[Page], release: Version, hybrid: bool) -> Grouping:
    """Deal layers out to groups.

    Args:
        name: The model's, for messages.
        pages: The layers' pages; at least one.
        release: The engine's version.
        hybrid: Whether layers with windows are given less than full length.

    Raises:
        UnsupportedModel: Pages cannot be brought to one size.
    """
    if not hybrid and any(page.kind in ("full", "latent") for page in pages):
        pages = [page.in_full() for page in pages]
    if _one_type(pages):
        whole = PageGroup(pages[0], tuple(range(len(pages))))
        return Grouping((whole,), tuple(pages), True)
    pages = _same_bytes(name, pages, release)
    buckets: dict[Page, list[int]] = {}
    for number, page in enumerate(pages):
        buckets.setdefault(page, []).append(number)
    size = _group_size([len(members) for members in buckets.values()], release)
    groups = []
    for page, members in buckets.items():
        count = -(-len(members) // size)
        groups += [PageGroup(page, tuple(members[index::count])) for index in range(count)]
    return Grouping(tuple(groups), tuple(pages), False)


def _one_type(pages: list[Page]) -> bool:
    """Whether every layer needs the same number of slots (``UniformTypeKVCacheSpecs``)."""
    full = {"full", "latent"}
    kinds = {"full" if page.kind in full else page.kind for page in pages}
    return len(kinds) == 1 and len({(p.block_size, p.reach, p.states) for p in pages}) == 1


def _same_bytes(name: str, pages: list[Page], release: Version) -> list[Page]:
    """Smaller pages get larger blocks, or from 0.33 on are padded (``unify_…_page_size``)."""
    largest = max(page.bytes for page in pages)
    equal = []
    for page in pages:
        if page.bytes == largest:
            equal.append(page)
        elif page.kind != "state" and largest % page.bytes == 0:
            equal.append(page.sized(page.block_size * (largest // page.bytes)))
        elif page.kind == "state" or release >= IN_FLIGHT_BATCHES:
            equal.append(replace(page, bytes=largest, formula=f"padded to {largest:,}"))
        else:
            raise UnsupportedModel(
                f"{name}: vLLM {release} cannot bring pages of {page.bytes:,} and {largest:,} "
                "bytes to one size"
            )
    return equal


def _group_size(counts: list[int], release: Version) -> int:
    """Layers of a group: the rarest kind's, or the commonest's where they are close."""
    least, most = min(counts), max(counts)
    quarters = 6 if release >= CLOSER_COUNTS else 5
    close = release >= CLOSE_COUNTS and 4 * most < quarters * least
    return most if close else least
