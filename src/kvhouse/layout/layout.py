"""How a model's KV lies in a pool: blocks for what grows, slots for what does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.formats import KVFormat, get_format
from kvhouse.layout.group import LayerGroup
from kvhouse.layout.grouping import make_groups
from kvhouse.spec.layers import Layer
from kvhouse.spec.model import DTYPE_BYTES, ModelSpec
from kvhouse.spec.reach import Reach

#: Tokens per block; vLLM's default on GPUs as well.
DEFAULT_BLOCK_SIZE = 16

#: Most tokens of a block.
MOST_BLOCK_SIZE = 2**20


@dataclass(frozen=True, slots=True)
class PoolSize:
    """What a pool consists of.

    Attributes:
        blocks: Blocks, which any group of layers may take.
        slots: Places for a request's state, one for each request; 0 where nothing needs them.
    """

    blocks: int
    slots: int = 0


@dataclass(frozen=True)
class KVLayout:
    """How a model's KV lies in memory.

    What grows with the request lies in *blocks*. A block is the unit that a pool hands out:
    ``block_size`` consecutive tokens of one request in every layer of one group (PagedAttention,
    Kwon et al. 2023, arXiv 2309.06180). Layers that keep the same tokens form a group; where a
    model has several kinds, each is cut into groups so that all blocks have the same bytes.
    What does not grow, a state, lies in one *slot* for each request.

    Attributes:
        groups: Layers that share a block table, each with as many tokens to a block as it says.
        format: How keys and values are stored.
        block_size: Tokens to a block, where entries are not compressed.
        block_bytes: Bytes of one block; 0 where nothing grows with the request.
        slot_bytes: Bytes of one slot; 0 where there is no state.
        dtype: What the model computes in, and keeps states in where they are not wider.
        other_tokens: Tokens of another input that layers attend to.
    """

    groups: tuple[LayerGroup, ...]
    format: KVFormat
    block_size: int
    block_bytes: int
    slot_bytes: int
    dtype: str
    other_tokens: int = 0

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        kv_format: str = "bf16",
        block_size: int = DEFAULT_BLOCK_SIZE,
        *,
        dtype: str | None = None,
        other_tokens: int = 0,
    ) -> KVLayout:
        """Lay out ``spec`` in ``kv_format``.

        Args:
            spec: The model.
            kv_format: How keys and values are stored.
            block_size: Tokens to a block.
            dtype: What the model computes in; by default the dtype of its weights.
            other_tokens: Tokens of another input that layers attend to, such as an image.

        Raises:
            KvhouseError: Unknown format or dtype, or a block size or number of tokens out of
                range.
            UnsupportedModel: The model keeps nothing at all.
        """
        if not 1 <= block_size <= MOST_BLOCK_SIZE:
            raise KvhouseError(
                f"block size {block_size}: a block holds 1 to {MOST_BLOCK_SIZE:,} tokens"
            )
        if other_tokens < 0:
            raise KvhouseError(f"other_tokens {other_tokens}: must be at least 0")
        fmt, used = get_format(kv_format), dtype or spec.dtype
        if used not in DTYPE_BYTES:
            raise KvhouseError(f"unknown dtype {used!r}: choose one of {', '.join(DTYPE_BYTES)}")
        parts = [part for layer in spec.layers for part in layer.parts]
        groups, block_bytes = make_groups(parts, fmt, used, block_size, other_tokens)
        slot_bytes = sum(_slot_bytes(part, fmt, used) for part in parts)
        if not groups and not slot_bytes:
            raise UnsupportedModel(
                f"{spec.name}: keeps nothing of a request, so nothing to lay out"
            )
        return cls(groups, fmt, block_size, block_bytes, slot_bytes, used, other_tokens)

    @cached_property
    def kinds(self) -> tuple[tuple[int, LayerGroup], ...]:
        """The groups of each kind as one, beside the index of the first of them.

        Groups of a kind keep the same tokens, so their tables are always equally long.
        """
        firsts: dict[tuple[Reach, int], int] = {}
        layers: dict[int, tuple[Layer, ...]] = {}
        for index, group in enumerate(self.groups):
            first = firsts.setdefault((group.reach, group.stride), index)
            layers[first] = (*layers.get(first, ()), *group.layers)
        return tuple(
            (first, replace(self.groups[first], layers=members))
            for first, members in layers.items()
        )

    @cached_property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes in all layers, while none of them lets an old one go.

        Of compressed entries each token counts its share, rounded up.
        """
        own = [group for group in self.groups if group.reach.kind != "another"]
        return sum(-(-group.entry_bytes // group.stride) for group in own)

    @cached_property
    def windows(self) -> tuple[int, ...]:
        """The lengths of windows that layers keep, in tokens, each once and ascending."""
        reaches = {group.reach for group in self.groups if group.reach.kind == "window"}
        return tuple(sorted(reach.tokens for reach in reaches))

    @property
    def several_kinds(self) -> bool:
        """Whether a request holds anything but blocks of one group that keeps every token."""
        return self.slot_bytes > 0 or [group.reach.kind for group in self.groups] != ["all"]

    def blocks_for(self, tokens: int, in_flight: int | None = None) -> int:
        """The most blocks that a request holds at once on its way to ``tokens`` tokens.

        Args:
            tokens: Tokens of the request.
            in_flight: The most tokens that one step computes for it; by default all.
        """
        step = tokens if in_flight is None else in_flight
        return sum(group.blocks_for(tokens, step) for group in self.groups)

    def held_bytes(self, tokens: int, in_flight: int | None = None) -> int:
        """Bytes of ``blocks_for`` blocks and of the slot."""
        return self.blocks_for(tokens, in_flight) * self.block_bytes + self.slot_bytes

    def padding_bytes(self, tokens: int, in_flight: int | None = None) -> int:
        """Bytes of ``blocks_for`` blocks that no layer fills."""
        step = tokens if in_flight is None else in_flight
        return sum(
            group.blocks_for(tokens, step) * (self.block_bytes - group.layer_bytes)
            for group in self.groups
        )

    def blocks_in(self, budget_bytes: int) -> int:
        """Whole blocks in a budget; the remainder stays outside the pool."""
        return max(0, budget_bytes) // self.block_bytes if self.block_bytes else 0

    def pool_in(self, budget_bytes: int, tokens: int, in_flight: int | None = None) -> PoolSize:
        """Divide a budget: slots for as many requests of ``tokens`` as fit, blocks of the rest.

        Slots are not blocks, so the split has to be made before the traffic is known. Where
        there is no state, ``tokens`` does not matter. Where not even one such request fits there
        is still a slot, if it leaves a block: a shorter request may fit.
        """
        if not self.slot_bytes:
            return PoolSize(self.blocks_in(budget_bytes))
        least = self.slot_bytes + self.block_bytes
        slots = max(int(budget_bytes >= least), budget_bytes // self.held_bytes(tokens, in_flight))
        return PoolSize(self.blocks_in(budget_bytes - slots * self.slot_bytes), slots)

    def pool_bytes(self, size: PoolSize) -> int:
        """Bytes of a pool."""
        return size.blocks * self.block_bytes + size.slots * self.slot_bytes

    def require(self, size: PoolSize) -> None:
        """Refuse a pool that can hold nothing.

        Raises:
            KvhouseError: It lacks the first block or the first slot.
        """
        if self.block_bytes and size.blocks < 1:
            raise KvhouseError(
                "the KV memory is smaller than one block: a block of "
                f"{self.block_size} tokens takes {self.block_bytes:,} bytes"
            )
        if self.slot_bytes and size.slots < 1:
            raise KvhouseError(
                "the KV memory has no place for the state of one request, which takes "
                f"{self.slot_bytes:,} bytes, beside its blocks"
            )


def _slot_bytes(part: Layer, kv_format: KVFormat, dtype: str) -> int:
    """Bytes of a part that do not grow with the request."""
    state = part.state_bytes(dtype)
    if part.reach.kind == "fixed":
        state += part.reach.tokens * part.token_bytes(kv_format, dtype)
    return state
