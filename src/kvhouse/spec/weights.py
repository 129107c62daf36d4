"""How many weights a decoder has, from its config and its family's form.

A layer is a mixer (attention, a state) and a feed-forward part, each with its norms. ``Form`` says
what a family's parts consist of, ``weight_forms`` holds one for each family, ``weight_mixers`` and
``weight_experts`` know the parts. Sizes that a file leaves out are those of the class, as
transformers fills them in (``weight_fields.json``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvhouse.spec.config import Config
from kvhouse.spec.experts import Experts


@dataclass(frozen=True, slots=True)
class Part:
    """Weights of a part of a model.

    Attributes:
        matrices: Weights that every token is multiplied with.
        others: Norms, biases, tables, convolutions and whatever else is not a matrix product.
        experts: Routed experts.
    """

    matrices: int = 0
    others: int = 0
    experts: tuple[Experts, ...] = ()

    def __add__(self, other: Part) -> Part:
        return Part(
            self.matrices + other.matrices,
            self.others + other.others,
            self.experts + other.experts,
        )

    def times(self, count: int) -> Part:
        """The part, ``count`` times."""
        experts = tuple(replace(one, layers=one.layers * count) for one in self.experts)
        return Part(self.matrices * count, self.others * count, experts)

    @property
    def parameters(self) -> int:
        """All weights, every expert included."""
        return self.matrices + self.others + sum(one.parameters for one in self.experts)


def linear(outputs: int, inputs: int, bias: bool = False) -> Part:
    """A matrix, with a bias if it has one."""
    return Part(outputs * inputs, outputs * bias)


def total(parts: list[Part]) -> Part:
    """The sum of parts, experts that are alike put together."""
    alike: dict[tuple[int, int, int], int] = {}
    for one in (experts for part in parts for experts in part.experts):
        key = (one.experts, one.active, one.parameters_each)
        alike[key] = alike.get(key, 0) + one.layers
    return Part(
        sum(part.matrices for part in parts),
        sum(part.others for part in parts),
        tuple(Experts(layers, *key) for key, layers in alike.items()),
    )


#: A trait that holds always, never, or where a flag of the config says so.
Switch = bool | str
#: A part of layer ``index`` of a kind.
LayerPart = Callable[[Config, int, str], Part]


def on(config: Config, switch: Switch) -> bool:
    """Whether a trait holds for this model."""
    return config.flag(switch, False) if isinstance(switch, str) else switch


@dataclass(frozen=True, slots=True)
class Form:
    """What a family's layers consist of.

    Attributes:
        qkv_bias: A bias on the query, key and value projections.
        key_bias: False where the key projection has none though the others have.
        output_bias: A bias on the attention's output projection.
        mlp_bias: A bias on each matrix of the MLP.
        head_bias: A bias on the output projection to the vocabulary.
        gated: Three matrices in the MLP (gate, up, down) rather than two.
        widths: Fields that may state the MLP's width, the first that is stated counts.
        ratio: The MLP's width over the hidden size where no field states it.
        norm: Vectors in one norm: 1 for RMSNorm, 2 for LayerNorm (weight and bias), 0 for a norm
            without weights.
        norms: Norms over the residual stream in one layer.
        final_norm: Whether a norm follows the last layer.
        qk_norm: The width of the norms of queries and keys: one head's (``dim``), all heads'
            together (``width``), or none.
        qk_vectors: Vectors in such a norm.
        qk_when: Whether queries and keys have these norms.
        gate: A gate on the attention's output: ``dim`` for one number per element, ``head`` for one
            per head.
        gate_bias: A bias on that gate.
        gate_when: Whether attention has the gate.
        sinks: A learned number per head, which the softmax sees as a further key.
        sparse: For a mixture of experts, which layers have one.
        shared: How the width of experts that all tokens pass through is stated: a ``count`` of
            experts of the routed ones' width, ``one`` of that width, or a ``width`` of its own.
        shared_gate: A number per token that weighs the shared expert.
        expert_bias: A bias on each matrix of each expert.
        router: Vectors as long as the number of experts beside the router's matrix: a bias, or the
            correction that balances the experts, which transformers holds as a buffer.
        positions: Weights of a learned position table.
        ties: Whether the flag for tied embeddings is heeded; else they never are.
        narrow: A field for the width of the embeddings, where it may differ from the stream's.
        cross: Attention to another input in every layer, with a norm.
        once: Further parts of the model, outside the layers.
        beside: Further parts of a layer.
        mixer: The part of a layer that mixes tokens, in place of attention.
        feed: The part of a layer that mixes channels, in place of MLP and experts.
    """

    qkv_bias: Switch = False
    key_bias: bool = True
    output_bias: Switch = False
    mlp_bias: Switch = False
    head_bias: Switch = False
    gated: bool = True
    widths: tuple[str, ...] = ("intermediate_size",)
    ratio: int | None = None
    norm: int | Callable[[Config], int] = 1
    norms: int | Callable[[Config], int] = 2
    final_norm: bool | Callable[[Config], bool] = True
    qk_norm: str = ""
    qk_vectors: int = 1
    qk_when: Switch = True
    gate: str = ""
    gate_bias: Switch = False
    gate_when: Switch = True
    sinks: bool = False
    sparse: Callable[[Config], Callable[[int], bool]] | None = None
    shared: str = ""
    shared_gate: bool = False
    expert_bias: bool = False
    router: int | Callable[[Config], int] = 0
    positions: Callable[[Config], int] | None = None
    ties: bool = True
    narrow: str = ""
    cross: Switch = "add_cross_attention"
    once: tuple[Callable[[Config], Part], ...] = ()
    beside: tuple[LayerPart, ...] = ()
    mixer: LayerPart | None = None
    feed: LayerPart | None = None


def embedding_width(config: Config, form: Form) -> int:
    """Width of the token embeddings."""
    return (config.maybe(form.narrow) if form.narrow else None) or config.hidden


def norm(config: Config, form: Form) -> Part:
    """One norm over the residual stream."""
    vectors = form.norm(config) if callable(form.norm) else form.norm
    return Part(others=vectors * config.hidden)


def norms(config: Config, form: Form) -> Part:
    """All norms over the residual stream in one layer."""
    return norm(config, form).times(form.norms(config) if callable(form.norms) else form.norms)


def width(config: Config, form: Form) -> int:
    """The MLP's width."""
    for name in form.widths:
        stated = config.maybe(name)
        if stated is not None:
            return stated
    if form.ratio is None:
        raise config.error(form.widths[0], "is missing")
    return form.ratio * config.hidden


def mlp(inner: int, hidden: int, form: Form, bias: bool = False) -> Part:
    """A gated or plain MLP of width ``inner``."""
    up = linear(inner, hidden, bias).times(2 if form.gated else 1)
    return up + linear(hidden, inner, bias)
