"""One way to serve a model, as a value: change a field, and see what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from kvhouse.core.policy import (
    DEFAULT_TOKEN_BUDGET,
    DEFAULT_WATERMARK,
    PAGED,
    Placement,
    get_policy,
)
from kvhouse.costs import Roofline, Sums
from kvhouse.devices import Device
from kvhouse.errors import KvhouseError
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout, PoolSize
from kvhouse.planner.budget import DEFAULT_UTILIZATION, Budget, kv_budget
from kvhouse.planner.concurrency import requests_that_fit
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.sharding import shard


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case comes to, for identical requests.

    Attributes:
        requests: Admitted by memory before the first refusal; exact.
        held_bytes: Bytes that one request holds by itself, on one device; a shared prefix is not
            among them.
        pool_bytes: Bytes of the pool, on one device.
        step_seconds: Floor of a decode step of all these requests; None without any.
        tokens_per_second: Ceiling of all requests together; 0 without any.
        link_seconds: The part of the step that ranks spend on their sums; 0 on one device.
        missing_bytes: What the weights and a given KV memory lack to fit one device; 0 where they
            fit. Requests are counted as if they did.
    """

    requests: int
    held_bytes: int
    pool_bytes: int
    step_seconds: float | None
    tokens_per_second: float
    link_seconds: float
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a device, and how it is served; the requests are all alike.

    Attributes:
        spec: The whole model.
        device: One device; with ``tp`` ranks there are so many.
        context: Tokens that each request holds.
        new_tokens: How many of them it generated.
        max_length: Longest request allowed.
        policy: One of ``core.policy.POLICIES``.
        kv_format: How keys and values are stored.
        weight_dtype: How the weights are stored; None as published.
        block_size: Tokens of a block.
        token_budget: The most tokens that one step computes for a request.
        watermark: Share of the pool that paged admissions keep free.
        utilization: Share of the device's memory that the engine may use.
        kv_memory: Bytes for keys and values on each device, where they are given.
        tp: Devices that share every layer.
        shared_tokens: Tokens of one prefix that all requests begin with; their full blocks lie in
            the pool once. Only ``paged`` can share.
    """

    spec: ModelSpec
    device: Device
    context: int
    new_tokens: int
    max_length: int
    policy: str = PAGED
    kv_format: str = "bf16"
    weight_dtype: str | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    token_budget: int = DEFAULT_TOKEN_BUDGET
    watermark: float = DEFAULT_WATERMARK
    utilization: float = DEFAULT_UTILIZATION
    kv_memory: int | None = None
    tp: int = 1
    shared_tokens: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            KvhouseError: A length, the policy or the shared prefix is impossible.
        """
        get_policy(self.policy)
        if not 1 <= self.new_tokens <= self.context <= self.max_length:
            raise KvhouseError(
                f"context {self.context} with {self.new_tokens} new tokens: give 1 to context new "
                f"tokens, and a context of at most max_length {self.max_length}"
            )
        if not 0 <= self.shared_tokens <= self.context - self.new_tokens:
            raise KvhouseError(
                f"{self.shared_tokens} shared tokens: from 0 to the prompt's "
                f"{self.context - self.new_tokens}"
            )
        if self.shared_tokens and self.policy != PAGED:
            raise KvhouseError(f"policy {self.policy} cannot share a prefix: choose {PAGED}")

    def rank(self) -> ModelSpec:
        """What one of the devices keeps of the model."""
        return rank_of(self.spec, self.tp)

    def layout(self) -> KVLayout:
        """How that lies in its memory."""
        return _layout(self.rank(), self.kv_format, self.block_size)

    def budget(self) -> Budget:
        """How one device's memory is divided.

        Raises:
            KvhouseError: The utilization or the KV memory is out of range.
        """
        return kv_budget(
            self.rank(), self.device, self.weight_dtype, self.utilization, self.kv_memory
        )

    def outcome(self) -> Outcome:
        """Requests that fit, and how fast they can decode.

        Raises:
            KvhouseError: The case is impossible; the message says which part.
        """
        rank, layout, memory = self.rank(), self.layout(), self.budget()
        budget = memory.kv
        placement = Placement(self.policy, layout, self.max_length, self.token_budget)
        prompt = self.context - self.new_tokens
        room = placement.tokens_to_admit(self.context, prompt, self.new_tokens)
        held = layout.held_bytes(room, self.token_budget)
        shared = shared_blocks(layout, self._reusable)
        if shared:
            size = _shared_pool(layout, budget, held, shared)
            requests = self._sharing(placement, size, shared)
        else:
            size = layout.pool_in(budget, self.context, self.token_budget)
            requests = requests_that_fit(
                placement, size, self.context, self.new_tokens, self.watermark
            )
        roofline = Roofline(rank, layout, self.device, self.weight_dtype)
        step = link = 0.0
        if requests:
            link = self.link_seconds(requests)
            step = roofline.decode_floor(requests, self.context).seconds + link
        return Outcome(
            requests=requests,
            held_bytes=held - shared * layout.block_bytes,
            pool_bytes=layout.pool_bytes(size),
            step_seconds=step or None,
            tokens_per_second=requests / step if requests else 0.0,
            link_seconds=link,
            missing_bytes=memory.missing,
        )

    @property
    def _reusable(self) -> int:
        """Shared tokens that a request need not compute: its last prompt token it always does."""
        return max(0, min(self.shared_tokens, self.context - self.new_tokens - 1))

    def _sharing(self, placement: Placement, size: PoolSize, shared: int) -> int:
        """Requests that fit beside one copy of the shared blocks."""
        needed = placement.layout.blocks_for(self.context, self.token_budget)
        if needed > size.blocks:
            return 0
        free = size.blocks - placement.held_back(size.blocks, self.watermark) - shared
        # The watermark does not bind the first, as in ``requests_that_fit``.
        by_blocks = max(1, free // (needed - shared))
        return min(by_blocks, size.slots) if placement.layout.slot_bytes else by_blocks

    def link_seconds(self, batch: int) -> float:
        """Floor of a step's sums over the ranks; 0 where no link's bandwidth is known."""
        return Sums.of(self.spec, self.device, self.tp).seconds(batch)


@lru_cache(maxsize=128)
def _layout(spec: ModelSpec, kv_format: str, block_size: int) -> KVLayout:
    """Cached, since cutting several kinds of layers into groups takes most of an outcome's time."""
    return KVLayout.of(spec, kv_format, block_size)


@lru_cache(maxsize=32)
def rank_of(spec: ModelSpec, tp: int) -> ModelSpec:
    """One rank's part, its rows of the output projection included.

    Raises:
        UnsupportedModel: The model cannot be shared out among so many.
    """
    if tp == 1:
        return spec
    return replace(shard(spec, tp), vocab_size=-(-spec.vocab_size // tp))


def shared_blocks(layout: KVLayout, tokens: int) -> int:
    """Blocks that a common prefix fills, of the layers that keep every token.

    Only full blocks can be shared, and what a window lets go of is not worth sharing.
    """
    return sum(tokens // group.block_size for group in layout.groups if group.reach.kind == "all")


def _shared_pool(layout: KVLayout, budget: int, held: int, shared: int) -> PoolSize:
    """The pool, with slots for as many requests as fit beside one copy of the shared blocks."""
    if not layout.slot_bytes:
        return PoolSize(layout.blocks_in(budget))
    common = shared * layout.block_bytes
    slots = max(0, budget - common) // (held - common)
    return PoolSize(layout.blocks_in(budget - slots * layout.slot_bytes), slots)
