"""What a model keeps: its layers' KV and its weights, as facts without any format or block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvhouse.errors import SpecError, UnsupportedModel
from kvhouse.spec.experts import Experts, Read
from kvhouse.spec.layers import Format, FullAttention, Layer
from kvhouse.spec.weight_formats import DTYPE_BYTES, Storage

__all__ = ["DTYPE_BYTES", "NO_LIMIT", "Basis", "Experts", "FullAttention", "Layer", "ModelSpec"]

#: Where a count of weights comes from: the family's own formula, a general one, the headers of the
#: files that hold them; or nowhere.
Basis = Literal["exact", "estimated", "stored", "unknown"]

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
            layers and the output projection, also where that is tied to the embedding table. Of
            routed experts, those that one token is sent to.
            Embedding and position tables as look-ups, norms and biases are left out. A forward
            pass costs two FLOPs for each, the output projection's only for tokens that are
            sampled. None where they are not known.
        dtype: The dtype that the weights are published in, a key of ``DTYPE_BYTES``. Of a file
            that stores quantised blocks, the dtype that they are widened to: float16.
        stored_weight_bytes: Bytes of all weights as a file stores them, where it mixes types;
            None where every weight has ``dtype``.
        weights_unknown: Why the weights are not known; empty where they are.
        weights_basis: Where ``parameters`` comes from.
        weights_note: What the count rests on or leaves out, in words; empty where it is all there
            is to say.
        experts: Routed experts, all of them; empty for a dense model.
        mixer_parameters: Of the matrices that every token passes through, those of attention or of
            what stands in its place; 0 where they are not told apart.
        storage: How a quantised checkpoint stores its weights, as its config says; None where
            every weight has ``dtype``, and where a file's header gives ``stored_weight_bytes``.
        mtp_layers: Layers that predict further tokens (multi-token prediction). The model runs
            without them; an engine that speculates with them keeps what they keep. They are not
            among ``layers``, nor their weights among ``parameters`` unless these are ``stored``.
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
    weights_basis: Basis = "exact"
    weights_note: str = ""
    experts: tuple[Experts, ...] = ()
    mixer_parameters: int = 0
    storage: Storage | None = None
    mtp_layers: tuple[Layer, ...] = ()

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

        Args:
            dtype: A name of ``weight_formats.WEIGHT_FORMATS``. The quantised ones store the
                matrices of the layers; the rest keeps the model's dtype.

        Raises:
            SpecError: No such dtype; the message lists those there are.
            UnsupportedModel: The weights are not known.
        """
        storage = self._storage(dtype)
        if dtype is None and self.stored_weight_bytes is not None:
            return self.stored_weight_bytes
        experts = sum(group.parameters for group in self.experts)
        rest = self.counted()[0] - self._dense() - experts
        return (
            self._dense_bytes(storage) + storage.experts.bytes(experts) + storage.rest.bytes(rest)
        )

    def weight_bytes_basis(self, dtype: str | None = None) -> Basis:
        """Where ``weight_bytes(dtype)`` comes from.

        Exact only if every weight has one dtype and their number is exact: which matrices a
        quantised checkpoint leaves alone, and its smaller tensors, only its headers tell.
        """
        if dtype is None and self.stored_weight_bytes is not None:
            return "stored"
        counts = self.weights_basis in ("exact", "stored")
        quantised = (
            self._storage(dtype).matrices.quantised or self._storage(dtype).experts.quantised
        )
        return "estimated" if counts and quantised else self.weights_basis

    def read_parameters(self, tokens: int, *, sampled: bool = True) -> Read:
        """Weights that one step of ``tokens`` tokens reads for its products, each once.

        ``matmul_parameters`` are read in any case; a mixture of experts reads those of further
        experts, ``Experts.expected`` and ``Experts.most`` of each layer in all.

        Args:
            tokens: Tokens in the step, of all requests together.
            sampled: Whether any row needs logits, and so the output projection.

        Raises:
            UnsupportedModel: The weights are not known.
        """
        if tokens == 0:
            return Read(0, 0, 0)
        floor = self.counted()[1] - (0 if sampled else self._head())
        return Read(
            floor,
            floor + round(sum(_beyond(group, group.expected(tokens)) for group in self.experts)),
            floor + round(sum(_beyond(group, group.most(tokens)) for group in self.experts)),
        )

    def read_bytes(self, tokens: int, dtype: str | None = None, *, sampled: bool = True) -> Read:
        """Bytes of ``read_parameters``, in ``dtype`` or as published.

        Of a file that mixes types without saying which part has which, all parts are taken at the
        average width.

        Raises:
            SpecError: No such dtype.
            UnsupportedModel: The weights are not known.
        """
        storage, read = self._storage(dtype), self.read_parameters(tokens, sampled=sampled)
        parameters, active = self.counted()[0], sum(one.active_parameters for one in self.experts)
        if dtype is None and self.stored_weight_bytes is not None:
            stored = self.stored_weight_bytes
            return Read(
                read.floor * stored // parameters,
                read.expected * stored // parameters,
                read.most * stored // parameters,
            )
        if not read.floor:
            return read
        head = self._head() if sampled else 0
        always = self._dense_bytes(storage) + storage.rest.bytes(head)
        return Read(
            always + storage.experts.bytes(active),
            always + storage.experts.bytes(read.expected - read.floor + active),
            always + storage.experts.bytes(read.most - read.floor + active),
        )

    def _storage(self, dtype: str | None) -> Storage:
        if dtype is not None:
            return Storage.of(dtype, self.dtype)
        return self.storage or Storage.of(self.dtype, self.dtype)

    def _head(self) -> int:
        """The output projection."""
        return self.vocab_size * self.hidden_size

    def _dense(self) -> int:
        """Matrices of the layers that every token passes through."""
        active = sum(group.active_parameters for group in self.experts)
        return self.counted()[1] - active - self._head()

    def _dense_bytes(self, storage: Storage) -> int:
        others = self._dense() - self.mixer_parameters
        return storage.mixers.bytes(self.mixer_parameters) + storage.matrices.bytes(others)

    def with_mtp(self) -> ModelSpec:
        """The model with its prediction layers among its layers.

        So an engine keeps them that speculates with them.
        """
        return replace(self, layers=self.layers + self.mtp_layers, mtp_layers=())

    def kv_bytes(
        self, tokens: int, kv_format: Format, *, dtype: str | None = None, encoder_tokens: int = 0
    ) -> int:
        """Logical bytes of what the model keeps of one request, states included.

        Prediction layers are not counted; ``with_mtp`` includes them.

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


def _beyond(group: Experts, used: float) -> float:
    """Weights of the experts that are used beyond those that one token uses."""
    return group.layers * (used - group.active) * group.parameters_each
