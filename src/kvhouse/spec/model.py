"""What a model keeps: its layers' KV and its weights, as facts without any format or block."""

from __future__ import annotations

from dataclasses import dataclass

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec.layers import Format, FullAttention, Layer

__all__ = ["DTYPE_BYTES", "NO_LIMIT", "FullAttention", "Layer", "ModelSpec"]

#: Bytes of one weight, by the name that configs use for its dtype.
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


#: The longest context of a model whose config states none.
NO_LIMIT = 2**40


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder, reduced to what memory and time depend on.

    Attributes:
        name: How the user named it: a catalogue name, a path.
        architecture: The class name in its config, such as ``LlamaForCausalLM``.
        layers: One entry per layer that could keep something, in order.
        hidden_size: Width of the residual stream, in elements.
        vocab_size: Rows of the output projection.
        max_length: Longest context the model was made for, in tokens; ``NO_LIMIT`` where its
            config states none.
        parameters: Every weight, tied ones counted once; None where they are not known.
        matmul_parameters: The weights that one token is multiplied with: every matrix of the
            layers and the output projection, also where that is tied to the embedding table.
            Embedding and position tables as look-ups, norms and biases are left out. A forward
            pass costs two FLOPs for each, the output projection's only for tokens that are
            sampled. None where they are not known.
        dtype: The dtype that the weights are published in, a key of ``DTYPE_BYTES``. Of a file
            that stores quantised blocks, the dtype that they are widened to: float16.
        stored_weight_bytes: Bytes of all weights as a file stores them, where it mixes types;
            None where every weight has ``dtype``.
        weights_unknown: Why the weights are not known; empty where they are.
    """

    name: str
    architecture: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    max_length: int
    parameters: int | None
    matmul_parameters: int | None
    dtype: str
    stored_weight_bytes: int | None = None
    weights_unknown: str = ""

    def counted(self) -> tuple[int, int]:
        """``parameters`` and ``matmul_parameters``, where they are known.

        Raises:
            UnsupportedModel: They are not; the message says why.
        """
        if self.parameters is None or self.matmul_parameters is None:
            raise UnsupportedModel(
                f"{self.name}: its weights are not known from its config alone: "
                f"{self.weights_unknown}; kvhouse.spec gives the bytes of its KV"
            )
        return self.parameters, self.matmul_parameters

    def length_limit(self, asked: int | None) -> int:
        """The longest request in tokens: ``asked``, or the model's own limit when None.

        Raises:
            SpecError: ``asked`` is below 1 or more than the model was made for, or it is None and
                the model's config states no limit.
        """
        if asked is None:
            if self.max_length == NO_LIMIT:
                raise SpecError(
                    f"{self.name}: its config states no longest context: give a max_length"
                )
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
            UnsupportedModel: The weights are not known.
        """
        if dtype is not None and dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise SpecError(f"unknown weight dtype {dtype!r}: choose one of {known}")
        if dtype is None and self.stored_weight_bytes is not None:
            return self.stored_weight_bytes
        return self.counted()[0] * DTYPE_BYTES[dtype or self.dtype]

    def kv_bytes(
        self, tokens: int, kv_format: Format, *, dtype: str | None = None, encoder_tokens: int = 0
    ) -> int:
        """Logical bytes of what the model keeps of one request, states included.

        Args:
            tokens: Tokens of the request.
            kv_format: How keys and values are stored, such as ``formats.get_format("bf16")``.
            dtype: What the model computes in, and so keeps its states in where they are not
                wider; by default the dtype of its weights.
            encoder_tokens: Tokens of another input that layers attend to, such as an image.
        """
        used = dtype or self.dtype
        return sum(
            part.kept_tokens(encoder_tokens if part.across else tokens)
            * part.token_bytes(kv_format, used)
            for layer in self.layers
            for part in layer.parts
        ) + self.state_bytes(dtype=used)

    def state_bytes(self, *, dtype: str | None = None) -> int:
        """The part of ``kv_bytes`` that does not grow with the request."""
        used = dtype or self.dtype
        return sum(part.state_bytes(used) for layer in self.layers for part in layer.parts)
