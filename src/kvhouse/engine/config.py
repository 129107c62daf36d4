"""How an engine keeps KV and forms its steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from kvhouse.core.memory import KVMemory, make_memory
from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, DEFAULT_WATERMARK, PAGED
from kvhouse.core.scheduler import DEFAULT_MAX_RUNNING, SchedulerConfig
from kvhouse.core.tiers import LoadRule
from kvhouse.engine.kernels.choose import KernelName
from kvhouse.engine.kv import KVTensors
from kvhouse.engine.tiering import NO_TIERS, TiersBelow
from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.formats import is_rotated
from kvhouse.layout import DEFAULT_BLOCK_SIZE, KVLayout, PoolSize
from kvhouse.replayer.tiering import Tiering
from kvhouse.spec.model import ModelSpec

#: The pool of an engine when none is given: enough for a few conversations on any machine.
DEFAULT_KV_MEMORY = 2**30


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How an engine keeps KV and forms its steps.

    Attributes:
        kv_memory: Budget for KV in bytes; the pool takes the whole blocks in it.
        kv_format: Format of keys and values in the pool.
        kv_rotation: Whether keys and values are rotated before they are rounded, which int8 and
            int4 can be; None for int4 only.
        kv_cache: Whether keys and values are kept at all. Without them each token computes all
            before it again, which shows what the cache is there for; requests are scheduled in
            the pool as ever.
        kernel: What computes attention: ``numba`` on the CPU, ``reference`` in plain torch
            anywhere, or ``auto`` for the first where it can.
        fast_path: Whether common decoder blocks are computed by our own code, each after a trial
            against the original; otherwise all is computed as transformers does.
        policy: One of ``core.policy.POLICIES``, or ``contiguous``.
        block_size: Tokens in a block.
        max_length: Longest request, prompt and output, in tokens; None for the model's own.
        token_budget: Most tokens computed in one step.
        max_running: Most requests that hold memory at once.
        watermark: Share of the pool that ``paged`` admissions leave free.
        prefix_cache: Whether requests share the blocks of equal prefixes; ``paged`` only.
        tiering: What lies below the pool, in this machine's memory and in files; what a tier's
            link carries is measured where it is not given. ``paged`` only.
        tier_directory: Where the files are made; by default where the system keeps temporary
            ones.
        load_rule: Whether to load from a tier what could be computed again; by default where
            that is sooner done, going by this machine's measured arithmetic.
        checked: Check every invariant of the core after every step.

    Raises:
        KvhouseError: A prefix cache or tiers without a KV cache.
    """

    kv_memory: int = DEFAULT_KV_MEMORY
    kv_format: str = "fp32"
    kv_rotation: bool | None = None
    kv_cache: bool = True
    kernel: KernelName = "auto"
    fast_path: bool = True
    policy: str = "paged"
    block_size: int = DEFAULT_BLOCK_SIZE
    max_length: int | None = None
    token_budget: int = DEFAULT_TOKEN_BUDGET
    max_running: int = DEFAULT_MAX_RUNNING
    watermark: float = DEFAULT_WATERMARK
    prefix_cache: bool = False
    tiering: Tiering = field(default_factory=Tiering)
    tier_directory: Path | None = None
    load_rule: LoadRule | None = None
    checked: bool = False

    def __post_init__(self) -> None:
        if not self.kv_cache and (self.prefix_cache or self.tiering):
            raise KvhouseError("without a KV cache there is nothing to share or to store")

    @property
    def rotated(self) -> bool:
        """Whether keys and values are rotated before they are rounded."""
        return is_rotated(self.kv_format, self.kv_rotation)

    def limits(self, spec: ModelSpec) -> SchedulerConfig:
        """The scheduler's limits for a model.

        Raises:
            KvhouseError: A limit is out of range.
        """
        return SchedulerConfig(
            spec.length_limit(self.max_length),
            self.token_budget,
            self.max_running,
            checked=self.checked,
        )

    def make_memory(
        self, limits: SchedulerConfig, layout: KVLayout, size: PoolSize, below: TiersBelow
    ) -> KVMemory:
        """The empty pool, with tiers below it.

        Raises:
            UnsupportedModel: Prefixes of this model cannot be shared, or its blocks not be stored.
            KvhouseError: A setting is out of range.
        """
        return make_memory(
            self.policy,
            layout,
            size,
            limits.max_length,
            self.watermark,
            in_flight=limits.token_budget,
            share=self.prefix_cache,
            tiers=[tier.config for tier in below.tiers],
            pays=below.pays,
        )

    def refuse_impossible(self, spec: ModelSpec) -> None:
        """Refuse what no engine can do, before the weights of a model are loaded.

        Raises:
            UnsupportedModel: The engine cannot keep what this model keeps.
            KvhouseError: A setting is out of range, or a format that the engine cannot store.
        """
        limits = self.limits(spec)
        layout = KVLayout.of(spec, self.kv_format, self.block_size)
        size = layout.pool_in(self.kv_memory, limits.max_length, limits.token_budget)
        self.make_memory(limits, layout, size, NO_TIERS)
        KVTensors(spec, layout, PoolSize(1, min(size.slots, 1)), rotate=self.kv_rotation)

    def sharing(self, spec: ModelSpec) -> EngineConfig:
        """The same with a prefix cache, where the policy and the model allow one."""
        if self.policy != PAGED or not self.kv_cache:
            return self
        shared = replace(self, prefix_cache=True)
        try:
            shared.refuse_impossible(spec)
        except UnsupportedModel:
            return self
        return shared


DEFAULT_CONFIG = EngineConfig()
