"""The kinds of layers, each of which knows what it keeps for one request.

Every kind answers the same three questions: how many tokens it keeps of a request of ``n``
(``kept_tokens``), what it keeps of each of them (``vectors`` in the KV format, ``fixed`` in a dtype
of its own) and what it keeps once per request whatever the length (``state``). The answers are
logical: what the model needs to go on, not what one engine happens to hold.

Where the need rises and falls with the length (a chunk that fills and starts anew), the kind
counts the most that any length up to ``n`` needs, since that is what memory must be there for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from kvhouse.spec.reach import ALL, Reach
from kvhouse.spec.tensors import Convolution, Tensor


class Format(Protocol):
    """What is asked of a KV format: the bytes of one vector, scales included."""

    def vector_bytes(self, elements: int) -> int:
        """Bytes of a vector of ``elements`` elements."""
        ...


class Layer:
    """A layer that keeps nothing; the base of all kinds.

    ``kind`` is the name in tables and messages; ``what`` says in a few words what is kept.
    """

    __slots__ = ()
    kind: ClassVar[str] = "no KV"
    what: ClassVar[str] = "keeps nothing of a request"

    @property
    def stride(self) -> int:
        """Tokens for which one entry is kept; more than 1 where entries are compressed."""
        return 1

    @property
    def attended(self) -> int | None:
        """How many of the kept tokens a query reads at most; None for all."""
        return None

    @property
    def reach(self) -> Reach:
        """Which tokens are kept; of a layer without vectors it says nothing."""
        return ALL

    @property
    def across(self) -> bool:
        """Whether the tokens are those of another input, an encoder's output or an image."""
        return self.reach.kind == "another"

    @property
    def parts(self) -> tuple[Layer, ...]:
        """The layer's kinds: itself, or several where they work side by side."""
        return (self,)

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """What one kept token takes, as ``(number of vectors, elements in each)`` pairs."""
        return ()

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """What one kept token takes in a dtype that the KV format does not change."""
        return ()

    @property
    def state(self) -> tuple[Tensor | Convolution, ...]:
        """What a request takes whatever its length."""
        return ()

    def kept_tokens(self, tokens: int) -> int:
        """Tokens kept of ``tokens`` seen."""
        return tokens

    def token_bytes(self, kv_format: Format, dtype: str) -> int:
        """Bytes of one kept token in a model that computes in ``dtype``."""
        vectors = sum(count * kv_format.vector_bytes(size) for count, size in self.vectors)
        return vectors + sum(tensor.bytes(dtype) for tensor in self.fixed)

    def state_bytes(self, dtype: str) -> int:
        """Bytes of the state of one request in a model that computes in ``dtype``."""
        return sum(tensor.bytes(dtype) for tensor in self.state)

    def attention_flops(self, context: int) -> int:  # noqa: ARG002 - the interface
        """FLOPs of attention for one query token after ``context`` tokens, itself included."""
        return 0


@dataclass(frozen=True, slots=True)
class WithoutKV(Layer):
    """A layer that only mixes channels, such as an MLP that counts as a layer of its own."""


@dataclass(frozen=True, slots=True)
class SharedKV(Layer):
    """A layer that reads the keys and values of an earlier one and keeps none of its own."""

    kind: ClassVar[str] = "shared KV"
    what: ClassVar[str] = "reads an earlier layer's KV and keeps none"


@dataclass(frozen=True, slots=True)
class FullAttention(Layer):
    """A layer in which every token keeps one key and one value vector per KV head.

    MHA has ``kv_heads == query_heads``, MQA has ``kv_heads == 1`` and GQA lies between
    (Ainslie et al. 2023, arXiv 2305.13245).
    """

    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    kind: ClassVar[str] = "full attention"
    what: ClassVar[str] = "keeps every token"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """One key and one value per KV head."""
        return ((self.kv_heads, self.key_dim), (self.kv_heads, self.value_dim))

    def attention_flops(self, context: int) -> int:
        """FLOPs for one query token over ``context`` keys: q·k and p·v, two FLOPs each."""
        per_key = 2 * self.query_heads * (self.key_dim + self.value_dim)
        return per_key * self.kept_tokens(context)


@dataclass(frozen=True, slots=True)
class SlidingAttention(FullAttention):
    """Attention over the last ``window`` tokens, the query's own included."""

    window: int
    kind: ClassVar[str] = "sliding window"
    what: ClassVar[str] = "keeps only the last tokens, a window"

    @property
    def reach(self) -> Reach:
        """The window."""
        return Reach("window", self.window)

    def kept_tokens(self, tokens: int) -> int:
        """The last ``window`` tokens."""
        return min(tokens, self.window)


@dataclass(frozen=True, slots=True)
class ChunkedAttention(FullAttention):
    """Attention within the query's own chunk of ``chunk`` tokens."""

    chunk: int
    kind: ClassVar[str] = "chunked attention"
    what: ClassVar[str] = "keeps only the tokens of one chunk"

    @property
    def reach(self) -> Reach:
        """The chunk."""
        return Reach("chunk", self.chunk)

    def kept_tokens(self, tokens: int) -> int:
        """At most one full chunk."""
        return min(tokens, self.chunk)


@dataclass(frozen=True, slots=True)
class CrossAttention(FullAttention):
    """Attention to another input, an encoder's output or an image: fixed once that is seen."""

    kind: ClassVar[str] = "cross attention"
    what: ClassVar[str] = "keeps the KV of another input"

    @property
    def reach(self) -> Reach:
        """The other input."""
        return Reach("another")


@dataclass(frozen=True, slots=True)
class LatentAttention(Layer):
    """Multi-head latent attention: one compressed vector per token for all heads together.

    It holds ``rank`` elements that keys and values are unfolded from and ``rope_dim`` elements of
    key that carry the position (DeepSeek-V2, arXiv 2405.04434).

    Attributes:
        window: How many of the last tokens are kept; None for all.
        selected: How many of the kept tokens a query attends to at most, by an indexer's choice
            (DeepSeek-V3.2); None for all. What is kept does not depend on it.
        unfolded: Elements of one head's key and value once they are unfolded from the latent;
            None where it is not stated. What is kept does not depend on it either.
    """

    query_heads: int
    rank: int
    rope_dim: int
    window: int | None = None
    selected: int | None = field(default=None, compare=False)
    unfolded: int | None = field(default=None, compare=False)
    kind: ClassVar[str] = "latent (MLA)"
    what: ClassVar[str] = "keeps one compressed vector of each token"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """The latent and the rotary part of the key, side by side."""
        return ((1, self.rank), (1, self.rope_dim))

    @property
    def attended(self) -> int | None:
        """Those that the indexer selects."""
        return self.selected

    @property
    def reach(self) -> Reach:
        """Every token, or the window."""
        return ALL if self.window is None else Reach("window", self.window)

    def kept_tokens(self, tokens: int) -> int:
        """Every token, or the last ``window``."""
        return tokens if self.window is None else min(tokens, self.window)

    def attention_flops(self, context: int) -> int:
        """FLOPs in the cheaper of two forms, unfolding not counted.

        Queries meet the latents themselves, as in decode, or the keys and values that are
        unfolded from them, as in prefill.
        """
        absorbed = 2 * self.rank + self.rope_dim
        per_key = 2 * self.query_heads * min(absorbed, self.unfolded or absorbed)
        return per_key * min(self.kept_tokens(context), self.selected or context)


@dataclass(frozen=True, slots=True)
class Indexer(Layer):
    """Keys of a sparse-attention indexer, one set of ``keys`` elements per token.

    ``dtype`` names the dtype of keys that are not in the KV format; ``positions`` counts int64
    numbers kept beside them.
    """

    keys: int
    dtype: str | None = None
    positions: int = 0
    kind: ClassVar[str] = "sparse indexer"
    what: ClassVar[str] = "keeps an index key of each token"

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """The keys, where they are in the KV format."""
        return () if self.dtype else ((1, self.keys),)

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """The keys, where they are not, and the positions."""
        keys = (Tensor(self.keys, self.dtype),) if self.dtype else ()
        return (*keys, Tensor(self.positions, "int64")) if self.positions else keys


@dataclass(frozen=True, slots=True)
class State(Layer):
    """A recurrent state of fixed size: SSM, linear attention, convolutions, RWKV.

    ``chunk`` is the number of tokens that the kernels take at a time, where the config states it.
    """

    tensors: tuple[Tensor | Convolution, ...]
    chunk: int | None = field(default=None, compare=False)
    kind: ClassVar[str] = "state"
    what: ClassVar[str] = "keeps a state of fixed size per request"

    @property
    def state(self) -> tuple[Tensor | Convolution, ...]:
        """The tensors."""
        return self.tensors

    def kept_tokens(self, tokens: int) -> int:  # noqa: ARG002 - the interface
        """None: the state has absorbed them."""
        return 0


@dataclass(frozen=True, slots=True)
class Combined(Layer):
    """Several kinds side by side in one layer, such as attention and a state in parallel."""

    members: tuple[Layer, ...]
    kind: ClassVar[str] = "combined"
    what: ClassVar[str] = "has several kinds of memory side by side"

    @property
    def parts(self) -> tuple[Layer, ...]:
        """The kinds."""
        return self.members

    def attention_flops(self, context: int) -> int:
        """FLOPs of all parts."""
        return sum(part.attention_flops(context) for part in self.members)


def describe(layer: Layer) -> str:
    """The layer's kinds in words, for tables and messages."""
    return " + ".join(part.kind for part in layer.parts)
