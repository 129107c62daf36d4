"""What an engine sets aside for a model, in one form for all engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

from kvhouse.errors import KvhouseError
from kvhouse.spec.layers import Layer, SharedKV, WithoutKV


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that are given memory together: one block table, or one buffer.

    Attributes:
        name: What the layers keep, in the words of ``kvhouse.spec``.
        layers: Layers in it.
        padding: Layers that the engine adds so that all groups are of one size; they hold nothing.
        block_size: Tokens in one block; 1 in engines that hand out single tokens.
        block_bytes: Bytes of one block over all its layers, padding included.
        blocks: Blocks that one request of so many tokens takes at most.
        formula: How ``block_bytes`` comes about.
        count: How the engine counts the blocks of a request.
    """

    name: str
    layers: int
    padding: int
    block_size: int
    block_bytes: int
    blocks: Callable[[int], int]
    formula: str
    count: str

    def bytes_for(self, tokens: int) -> int:
        """Bytes set aside for one request of ``tokens`` tokens."""
        return self.blocks(tokens) * self.block_bytes


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine's own account of a model's KV on one rank.

    Attributes:
        engine: The engine's name.
        version: Its version, as far as the rules tell versions apart.
        groups: What is set aside together, with the formula of each.
        max_model_len: The longest request, in tokens.
        block_size: Tokens per block as the engine reports it: the smallest over groups.
        pool_block_bytes: Bytes that one block takes from the pool; groups share one pool. 0 where
            there is no pool.
        available_bytes: Bytes for KV, where they were given.
        blocks: Blocks of the pool, where they were given or follow from the bytes.
        kv_tokens: Tokens of capacity as the engine prints them.
        max_concurrency: Requests of ``max_model_len`` at once, as the engine prints it.
        estimated_max_len: The longest request that fits, as the engine estimates it; None where
            the memory is not known.
        needed: Bytes that the engine asks for before it serves one request of so many tokens.
        log_lines: What its log will say.
        flags: What to start it with, one option each.
        notes: Assumptions, and rules that depend on the version.
        figures: Other figures that the engine prints, by name: bytes, tokens or cells.
        capacity: Tokens and concurrency that the engine prints of a pool of so many blocks; None
            where it has no pool of blocks, or prints no concurrency.
    """

    engine: str
    version: str
    groups: tuple[Group, ...]
    max_model_len: int
    block_size: int
    pool_block_bytes: int
    available_bytes: int | None
    blocks: int | None
    kv_tokens: int | None
    max_concurrency: Fraction | None
    estimated_max_len: int | None
    needed: Callable[[int], int]
    log_lines: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[tuple[str, int], ...] = ()
    capacity: Callable[[int], tuple[int, Fraction]] | None = None

    def needed_bytes(self, tokens: int | None = None) -> int:
        """Bytes that one request needs; of ``max_model_len`` tokens by default."""
        return self.needed(self.max_model_len if tokens is None else tokens)

    def reserved_bytes(self, tokens: int) -> tuple[tuple[Group, int], ...]:
        """Bytes set aside for one request of ``tokens`` tokens, by group."""
        return tuple((group, group.bytes_for(tokens)) for group in self.groups)

    @property
    def kv_bytes_per_token(self) -> Fraction:
        """Bytes that one more token costs a long request, states and windows aside.

        It is the slope of ``needed`` beyond every window, so it is what to divide memory by only
        where nothing else is kept.
        """
        step = lcm(*(group.block_size for group in self.groups))
        return Fraction(self.needed(_FAR + step) - self.needed(_FAR), step)

    def to_dict(self, tokens: int) -> dict[str, Any]:
        """The view as plain values with stable keys, for requests of ``tokens`` tokens."""
        concurrency = self.max_concurrency
        return {
            "engine": self.engine,
            "version": self.version,
            "max_model_len": self.max_model_len,
            "block_size": self.block_size,
            "pool_block_bytes": self.pool_block_bytes,
            "available_bytes": self.available_bytes,
            "blocks": self.blocks,
            "kv_tokens": self.kv_tokens,
            "max_concurrency": None if concurrency is None else float(concurrency),
            "estimated_max_len": self.estimated_max_len,
            "needed_bytes": self.needed_bytes(),
            "groups": [
                {
                    "name": group.name,
                    "layers": group.layers,
                    "padding": group.padding,
                    "block_size": group.block_size,
                    "block_bytes": group.block_bytes,
                    "reserved_bytes": reserved,
                    "formula": group.formula,
                    "count": group.count,
                }
                for group, reserved in self.reserved_bytes(tokens)
            ],
            "figures": [{"name": name, "value": value} for name, value in self.figures],
            "log_lines": list(self.log_lines),
            "flags": list(self.flags),
            "notes": list(self.notes),
        }

    def figure(self, name: str) -> int:
        """One of ``figures``.

        Raises:
            KvhouseError: The engine prints no such figure for this model.
        """
        for known, value in self.figures:
            if known == name:
                return value
        raise KvhouseError(f"{self.engine} prints no {name!r} for this model")


#: Farther than any window.
_FAR = 2**40


def longest_that_fits(needed: Callable[[int], int], available: int, most: int) -> int:
    """The longest request whose ``needed`` bytes are available, by bisection; 0 if none is.

    ``needed`` must not fall as tokens grow (vLLM, ``estimate_max_model_len``).
    """
    least, beyond = 0, most + 1
    while beyond - least > 1:
        middle = (least + beyond) // 2
        if needed(middle) <= available:
            least = middle
        else:
            beyond = middle
    return least


def gib(count: int) -> str:
    """Bytes in GiB with two decimals, as engines print them."""
    return f"{count / 2**30:.2f}"


def mib(count: int) -> str:
    """Bytes in MiB with two decimals, as engines print them."""
    return f"{count / 2**20:.2f}"


def always(count: int) -> Callable[[int], int]:
    """The blocks of a request where they do not depend on its length."""
    return lambda _tokens: count


def held_parts(layer: Layer) -> tuple[Layer, ...]:
    """The parts of a layer that an engine has a cache for."""
    return tuple(part for part in layer.parts if not isinstance(part, SharedKV | WithoutKV))
