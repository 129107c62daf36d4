"""What a model keeps: its layers' KV and its weights, as facts without any format or block."""

from __future__ import annotations

from dataclasses import dataclass

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
        matmul_parameters: The weights that one token is multiplied with: all but the embedding
            tables' look-ups and the norms. A forward pass costs two FLOPs for each.
        dtype: The dtype that the weights are published in, a key of ``DTYPE_BYTES``.
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

    def weight_bytes(self, dtype: str | None = None) -> int:
        """Bytes of all weights in ``dtype``, by default the one they are published in."""
        return self.parameters * DTYPE_BYTES[dtype or self.dtype]
