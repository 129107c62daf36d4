"""Kinds of layers that one or two architectures have; ``layers`` has the questions they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvhouse.spec.layers import Layer
from kvhouse.spec.reach import ALL, Reach
from kvhouse.spec.tensors import Tensor


@dataclass(frozen=True, slots=True)
class SharedVector(Layer):
    """One vector per token that serves as key and as value, over the last ``window`` tokens."""

    query_heads: int
    dim: int
    window: int
    kind: ClassVar[str] = "sliding window"
    what: ClassVar[str] = "keeps only the last tokens, a window"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """The vector."""
        return ((1, self.dim),)

    @property
    def reach(self) -> Reach:
        """The window."""
        return Reach("window", self.window)

    def kept_tokens(self, tokens: int) -> int:
        """The last ``window`` tokens."""
        return min(tokens, self.window)

    def attention_flops(self, context: int) -> int:
        """FLOPs of q·k and p·v over the window."""
        return 4 * self.query_heads * self.dim * self.kept_tokens(context)


@dataclass(frozen=True, slots=True)
class CompressedEntries(Layer):
    """One entry of ``dim`` elements for every ``ratio`` tokens (DeepSeek-V4)."""

    dim: int
    ratio: int
    kind: ClassVar[str] = "compressed"
    what: ClassVar[str] = "keeps one entry for several tokens"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """The entry."""
        return ((1, self.dim),)

    @property
    def stride(self) -> int:
        """Tokens to an entry."""
        return self.ratio

    def kept_tokens(self, tokens: int) -> int:
        """Entries that are complete."""
        return tokens // self.ratio


@dataclass(frozen=True, slots=True)
class PendingTokens(Layer):
    """Tokens that wait until ``ratio`` of them can be compressed to one entry."""

    dim: int
    ratio: int
    kind: ClassVar[str] = "pending"
    what: ClassVar[str] = "keeps tokens until they are compressed"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """The vector to be compressed and its gate."""
        return ((2, self.dim),)

    @property
    def reach(self) -> Reach:
        """Fewer tokens than make an entry."""
        return Reach("fixed", self.ratio - 1)

    def kept_tokens(self, tokens: int) -> int:
        """One fewer than make an entry, at most."""
        return min(tokens, self.ratio - 1)


@dataclass(frozen=True, slots=True)
class PreviousGroup(Layer):
    """The last ``ratio`` tokens that were compressed, which the next entry overlaps with."""

    dim: int
    ratio: int
    kind: ClassVar[str] = "overlap"
    what: ClassVar[str] = "keeps the group before the present one"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """The vector."""
        return ((1, self.dim),)

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """Its gate."""
        return (Tensor(self.dim, "float32"),)

    @property
    def reach(self) -> Reach:
        """One group."""
        return Reach("fixed", self.ratio)

    def kept_tokens(self, tokens: int) -> int:
        """The group, once there is one."""
        return self.ratio if tokens >= self.ratio else 0


@dataclass(frozen=True, slots=True)
class HiddenStates(Layer):
    """The hidden states themselves, from which keys and values are computed anew each time.

    ``memory`` is the number of tokens that are kept; None keeps all.
    """

    width: int
    memory: int | None = None
    kind: ClassVar[str] = "hidden states"
    what: ClassVar[str] = "keeps hidden states in place of keys and values"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """The hidden state."""
        return ((1, self.width),)

    @property
    def reach(self) -> Reach:
        """Every token, or the last ``memory``."""
        return ALL if self.memory is None else Reach("window", self.memory)

    def kept_tokens(self, tokens: int) -> int:
        """Every token, or the last ``memory``."""
        return tokens if self.memory is None else min(tokens, self.memory)


@dataclass(frozen=True, slots=True)
class HashBuckets(Layer):
    """The bucket of each token under each hash, once a prompt is longer than one ``chunk``."""

    hashes: int
    chunk: int
    kind: ClassVar[str] = "hash buckets"
    what: ClassVar[str] = "keeps the hash bucket of each token"

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """One bucket number for each head and hash."""
        return (Tensor(self.hashes, "int64"),)

    def kept_tokens(self, tokens: int) -> int:
        """Every token of a prompt of more than one chunk."""
        return tokens if tokens > self.chunk else 0
