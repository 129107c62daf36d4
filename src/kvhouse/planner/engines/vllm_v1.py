"""vLLM, V1 engine: blocks, needed memory, and what its log prints.

Source: vllm/v1/core/kv_cache_utils.py (``get_kv_cache_configs``, ``_report_kv_cache_config``,
``get_max_concurrency_for_kv_cache_config``). Versions differ; ``vllm_options`` names where.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from kvhouse.errors import KvhouseError, UnsupportedModel
from kvhouse.planner.engines.option_values import flags
from kvhouse.planner.engines.view import EngineView, Group, gib, held_parts, longest_that_fits
from kvhouse.planner.engines.vllm_groups import Grouping, PageGroup, group_pages
from kvhouse.planner.engines.vllm_options import (
    FLAGS,
    HYBRID,
    IN_FLIGHT_BATCHES,
    MEMORY_BYTES,
    NEEDED_BY_GROUP,
    NO_MEMORY,
    TOKENS_BY_CONCURRENCY,
    VllmOptions,
)
from kvhouse.planner.engines.vllm_pages import Page, layer_pages, state_page_bytes
from kvhouse.spec.model import ModelSpec
from kvhouse.spec.sharding import shard, stage_bounds

#: GPUs of so many bytes run a server with larger batches by default (``EngineArgs``).
_LARGE_GPU = 70 * 2**30
_BATCHED, _BATCHED_SMALL = 8192, 2048


def vllm_v1(spec: ModelSpec, options: VllmOptions) -> EngineView:
    """How vLLM's V1 engine pages a model.

    Args:
        spec: The whole model; ``options`` says how it is spread over ranks.
        options: Options of the engine, memory among them.

    Raises:
        UnsupportedModel: It cannot be spread so, or has layers that the engine does not page.
        KvhouseError: A length is too long, or the batch size is needed and not known.
    """
    length = spec.length_limit(options.max_model_len)
    whole = replace(spec, layers=(*spec.layers, *options.drafting(spec)), mtp_layers=())
    rank = shard(whole, tp=options.tp)
    pages = layer_pages(rank, options)
    if not pages:
        raise UnsupportedModel(f"{spec.name}: keeps nothing, so vLLM gives it no blocks")
    hybrid = _is_hybrid(pages, options)
    grouping = group_pages(spec.name, pages, options.release, hybrid)
    in_flight = _in_flight(grouping, options)
    blocks = options.blocks if options.blocks is not None else _blocks(spec, grouping, options)
    stages = _stages(spec, grouping, options)
    return _Report(spec, options, grouping, stages, in_flight, length, blocks).build(rank)


class _Report:
    """The figures of one model and one pool."""

    def __init__(
        self,
        spec: ModelSpec,
        options: VllmOptions,
        grouping: Grouping,
        stages: list[tuple[int, int]],
        in_flight: int,
        length: int,
        blocks: int | None,
    ) -> None:
        self.spec, self.options, self.grouping, self.stages = spec, options, grouping, stages
        self.in_flight, self.length, self.blocks = in_flight, length, blocks
        self.release = options.release

    def build(self, rank: ModelSpec) -> EngineView:
        available = self.options.pool_bytes()
        estimated = None
        if available is not None:
            estimated = longest_that_fits(self.needed, available, self.length)
        return EngineView(
            engine="vLLM",
            version=str(self.release),
            groups=tuple(map(self._group, self.grouping.groups)),
            max_model_len=self.length,
            block_size=self.block_size,
            pool_block_bytes=self.pool_block_bytes,
            available_bytes=available,
            blocks=self.blocks,
            kv_tokens=None if self.blocks is None else self.tokens(self.blocks),
            max_concurrency=None if self.blocks is None else self.concurrency(self.blocks),
            estimated_max_len=estimated,
            needed=self.needed,
            log_lines=tuple(self._log(rank, available, estimated)),
            flags=tuple(self._flags(estimated)),
            notes=tuple(self._notes()),
            figures=tuple(self._figures(rank).items()),
            capacity=lambda blocks: (self.tokens(blocks), self.concurrency(blocks)),
        )

    @property
    def block_size(self) -> int:
        """The smallest block of attention; of states where there is no attention."""
        sizes = [group.page.block_size for group in self.grouping.groups]
        return min(sizes)

    def blocks_for(self, tokens: int) -> int:
        """Blocks of one request in all groups."""
        return sum(g.page.blocks(tokens, self.in_flight) for g in self.grouping.groups)

    @property
    def pool_block_bytes(self) -> int:
        """Bytes that a block takes on the stage that it takes most on."""
        return max(self.grouping.pool_block_bytes(*stage) for stage in self.stages)

    def needed(self, tokens: int) -> int:
        """Bytes of one request on the stage that needs most: by group with its padding.

        Before 0.16 it is by layer without padding, and over all stages, though each holds its own
        layers only (issue 34076).
        """
        if not self.grouping.uniform and self.release >= NEEDED_BY_GROUP:
            return self.blocks_for(tokens) * self.pool_block_bytes
        whole = [(0, len(self.grouping.pages))]
        stages = self.stages if self.release >= NEEDED_BY_GROUP else whole
        sizes = [page.blocks(tokens, self.in_flight) * page.bytes for page in self.grouping.pages]
        return max(sum(sizes[first:end]) for first, end in stages)

    def concurrency(self, blocks: int) -> Fraction:
        """Requests of full length in a pool."""
        if self.release < HYBRID:
            return Fraction(blocks * self.block_size, self.length)
        return Fraction(blocks, self.blocks_for(self.length))

    def tokens(self, blocks: int) -> int:
        """Tokens as the log prints them; not a number to divide bytes by on a hybrid."""
        if self.release < TOKENS_BY_CONCURRENCY:
            return blocks // len(self.grouping.groups) * self.block_size * self.options.dcp
        # The engine multiplies a float, whose last bit may fall below a whole number.
        return int(blocks / self.blocks_for(self.length) * self.length)

    def _group(self, group: PageGroup) -> Group:
        page, grouping = group.page, self.grouping
        padding = 0 if grouping.uniform else grouping.size - len(group.members)
        size = grouping.pool_block_bytes()
        layers = len(group.members)
        text = page.formula if layers + padding == 1 else f"{layers + padding} · {page.formula}"
        if grouping.uniform and len({one.bytes for one in grouping.pages}) > 1:
            text = "sum over layers of different pages"
        return Group(
            name=page.name,
            layers=layers,
            padding=padding,
            block_size=page.block_size,
            block_bytes=size,
            blocks=lambda tokens: page.blocks(tokens, self.in_flight),
            formula=text,
            count=page.count(self.in_flight),
        )

    def _figures(self, rank: ModelSpec) -> dict[str, int]:
        figures = {"groups": len(self.grouping.groups)}
        state = state_page_bytes(rank, self.options)
        if state:
            figures["state_bytes"] = state
            figures["state_padded_bytes"] = self.grouping.groups[0].page.bytes
        return figures

    def _log(self, rank: ModelSpec, available: int | None, estimated: int | None) -> list[str]:
        lines = self._hybrid_log(rank)
        if available is not None:
            lines.append(f"Available KV cache memory: {gib(available)} GiB")
        if available is not None and available <= 0:
            return [*lines, NO_MEMORY]
        if available is not None and self.needed(self.length) > available:
            lines.append(
                f"ValueError: to serve one request of {self.length} tokens, "
                f"{gib(self.needed(self.length))} GiB KV cache is needed, which is larger than "
                f"{gib(available)} GiB; the estimated maximum model length is {estimated}"
            )
            return lines
        if self.blocks is not None:
            concurrency = float(self.concurrency(self.blocks))
            lines.append(f"GPU KV cache size: {self.tokens(self.blocks):,} tokens")
            lines.append(
                f"Maximum concurrency for {self.length:,} tokens per request: {concurrency:.2f}x"
            )
        return lines

    def _hybrid_log(self, rank: ModelSpec) -> list[str]:
        state = state_page_bytes(rank, self.options)
        lines = []
        if state and self.block_size != (self.options.block_size or 0):
            lines.append(f"Setting attention block size to {self.block_size} tokens")
        page = self.grouping.groups[0].page.bytes
        if state and page != state:
            lines.append(f"Padding mamba page size by {100 * (page - state) / state:.2f}%")
        if not self.grouping.uniform:
            lines += self._padding_log()
        return lines

    def _padding_log(self) -> list[str]:
        lines = []
        counts: dict[Page, int] = {}
        for page in self.grouping.pages:
            counts[page] = counts.get(page, 0) + 1
        for count in counts.values():
            padding = -count % self.grouping.size
            if padding:
                share = 100 * padding / count
                lines.append(
                    f"Add {padding} padding layers, may waste at most {share:.2f}% KV cache memory"
                )
        return lines

    def _flags(self, estimated: int | None) -> list[str]:
        """Options that start the engine so, with the longest length that fits."""
        options, length = self.options, self.length
        available = options.pool_bytes()
        if available is not None and available <= 0:
            return []
        if estimated:
            length = estimated  # what is asked for does not fit where this is less
        found = [f"--max-model-len {length}", *flags(options, FLAGS)]
        if options.available_bytes is not None and self.release >= MEMORY_BYTES:
            found.append(f"--kv-cache-memory-bytes {options.available_bytes}")
        elif options.available_bytes is not None and options.blocks is None:
            found.append(f"--num-gpu-blocks-override {self.blocks}")
        elif options.total_bytes is not None:
            found.append(f"--gpu-memory-utilization {options.utilization:g}")
        return found

    def _notes(self) -> list[str]:
        notes = []
        available = self.options.pool_bytes()
        if available is not None and available <= 0:
            notes.append("it cannot start: use more ranks, narrower weights or a larger device")
        if len(self.grouping.groups) > 1:
            notes.append(
                "tokens are not bytes: blocks hold different layers, so dividing memory by the "
                "printed tokens gives no size of a token"
            )
        if any(page.kind in ("window", "chunk") for page in self.grouping.pages):
            notes.append(f"windows keep room for {self.in_flight:,} tokens in flight")
        return notes


def _is_hybrid(pages: list[Page], options: VllmOptions) -> bool:
    """Chunked attention turns the manager off unless it is asked for."""
    if options.hybrid is not None:
        return options.hybrid
    chunked = any(page.kind == "chunk" for page in pages)
    return options.release >= HYBRID and not chunked


def _in_flight(grouping: Grouping, options: VllmOptions) -> int:
    """Tokens that are scheduled and not yet settled."""
    if all(page.kind not in ("window", "chunk") for page in grouping.pages):
        return 0
    batched = options.max_num_batched_tokens
    if batched is None and options.total_bytes is not None:
        batched = _BATCHED if options.total_bytes >= _LARGE_GPU else _BATCHED_SMALL
    if batched is None:
        raise KvhouseError(
            "layers with windows reserve a batch: give max_num_batched_tokens, or the device's "
            "memory that vLLM's default depends on"
        )
    if options.release < IN_FLIGHT_BATCHES:
        return batched
    return batched * (options.concurrent_batches or max(2, options.pp))


def _blocks(spec: ModelSpec, grouping: Grouping, options: VllmOptions) -> int | None:
    """Blocks that every rank has room for: the fewest over stages."""
    available = options.pool_bytes()
    if available is None:
        return None
    sizes = [grouping.pool_block_bytes(*stage) for stage in _stages(spec, grouping, options)]
    return max(0, available) // max(sizes)


def _stages(spec: ModelSpec, grouping: Grouping, options: VllmOptions) -> list[tuple[int, int]]:
    """The pages of each pipeline stage, from first to end; draft layers are on the last."""
    held = [len(held_parts(layer)) for layer in spec.layers]
    stages = []
    for stage in range(options.pp):
        start, end = stage_bounds(len(spec.layers), options.pp, stage)
        last = stage == options.pp - 1
        stages.append((sum(held[:start]), len(grouping.pages) if last else sum(held[:end])))
    return stages
