"""What a model keeps: its layers' KV and its weights, as facts without any format or block."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import SpecError

#: Bytes of one weight, by the name that configs use for its dtype.
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class FullAttention:
    """A layer in which every token keeps one key and one value vector per KV head.

    MHA has ``kv_heads == query_heads``, MQA has ``kv_heads == 1`` and GQA lies between
    (Ainslie et al. 2023, arXiv 2305.13245).
    """

    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def vectors(self) -> tuple[tuple[int, int], ...]:
        """What one token keeps, as ``(number of vectors, elements in each)`` pairs."""
        return ((self.kv_heads, self.key_dim), (self.kv_heads, self.value_dim))

    def attention_flops(self, context: int) -> int:
        """FLOPs for one query token over ``context`` keys: q·k and p·v, two FLOPs each."""
        return 2 * self.query_heads * (self.key_dim + self.value_dim) * context


#: Every layer kind that kvhouse can count. A model with any other kind is refused by name.
Layer = FullAttention


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder, reduced to what memory and time depend on.

    Attributes:
        name: How the user named it: a catalogue name, a path.
        architecture: The class name in its config, such as ``LlamaForCausalLM``.
        layers: One entry per decoder layer, in order.
        hidden_size: Width of the residual stream, in elements.
        vocab_size: Rows of the output projection.
        max_length: Longest context the model was made for, in tokens.
        parameters: Every weight, tied ones counted once.
        matmul_parameters: The weights that one token is multiplied with: every matrix of the
            layers and the output projection, also where that is tied to the embedding table.
            Embedding and position tables as look-ups, norms and biases are left out. A forward
            pass costs two FLOPs for each, the output projection's only for tokens that are sampled.
        dtype: The dtype that the weights are published in, a key of ``DTYPE_BYTES``. Of a file
            that stores quantised blocks, the dtype that they are widened to: float16.
        stored_weight_bytes: Bytes of all weights as a file stores them, where it mixes types;
            None where every weight has ``dtype``.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    max_length: int
    parameters: int
    matmul_parameters: int
    dtype: str
    stored_weight_bytes: int | None = None

    def length_limit(self, asked: int | None) -> int:
        """The longest request in tokens: ``asked``, or the model's own limit when None.

        Raises:
            SpecError: ``asked`` is below 1 or more than the model was made for.
        """
        if asked is None:
            return self.max_length
        if not 1 <= asked <= self.max_length:
            raise SpecError(
                f"max_length {asked:,}: {self.name} takes 1 to {self.max_length:,} tokens"
            )
        return asked

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of all weights in ``dtype``, by default as they are published.

        Raises:
            SpecError: No such dtype; the message lists those there are.
        """
        if dtype is not None and dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise SpecError(f"unknown weight dtype {dtype!r}: choose one of {known}")
        if dtype is None and self.stored_weight_bytes is not None:
            return self.stored_weight_bytes
        return self.parameters * DTYPE_BYTES[dtype or self.dtype]
