"""How many weights a decoder has, from its sizes and its family's form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """A decoder's sizes.

    Attributes:
        layers: Decoder layers.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Elements in one head's key, value or query.
        intermediate: Width inside the MLP.
        vocab: Tokens in the vocabulary.
        embedding: Width of the token embeddings; a projection bridges it to ``hidden``.
        positions: Rows of a learned position table; 0 where positions are rotary.
        max_length: Longest context in tokens.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    embedding: int
    positions: int
    max_length: int


@dataclass(frozen=True, slots=True)
class Form:
    """Which matrices and vectors a family's layers consist of.

    Attributes:
        gated_mlp: Three matrices in the MLP (gate, up, down) rather than two.
        qkv_bias: A bias on the query, key and value projections.
        output_bias: A bias on the attention's output projection.
        mlp_bias: A bias on each matrix of the MLP.
        head_bias: A bias on the output projection to the vocabulary.
        norm_vectors: Vectors in one norm: 1 for RMSNorm, 2 for LayerNorm (weight and bias), 0 for
            a norm without weights.
        layer_norms: Norms over the residual stream in one layer.
        final_norm: Whether a norm follows the last layer.
        qk_norm: Whether queries and keys have a norm each, over ``head_dim``.
        tied: Whether the output projection is the embedding table.
    """

    gated_mlp: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_bias: bool
    norm_vectors: int
    layer_norms: int
    final_norm: bool
    qk_norm: bool
    tied: bool


def count_weights(sizes: Sizes, form: Form) -> tuple[int, int]:
    """All parameters, and those that a token is multiplied with.

    Returns:
        ``(parameters, matmul_parameters)``. The first counts tied weights once. The second holds
        every matrix of the layers, the projections between embedding and residual width, and the
        output projection (also when it is tied, since it multiplies there all the same); it
        leaves out the embedding table as a look-up, the position table, norms and biases.
    """
    matrices = sizes.layers * _layer_matrices(sizes, form) + _bridge(sizes)
    table = sizes.vocab * sizes.embedding
    vectors = sizes.layers * _layer_vectors(sizes, form)
    vectors += sizes.hidden * form.norm_vectors * form.final_norm
    vectors += sizes.vocab * form.head_bias
    tables = table * (1 if form.tied else 2) + sizes.positions * sizes.hidden
    return matrices + vectors + tables, matrices + table


def _layer_matrices(sizes: Sizes, form: Form) -> int:
    query = sizes.heads * sizes.head_dim
    key_value = 2 * sizes.kv_heads * sizes.head_dim
    attention = sizes.hidden * (query + key_value) + query * sizes.hidden
    return attention + sizes.hidden * sizes.intermediate * (3 if form.gated_mlp else 2)


def _layer_vectors(sizes: Sizes, form: Form) -> int:
    biases = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim * form.qkv_bias
    biases += sizes.hidden * form.output_bias
    inner = sizes.intermediate * (2 if form.gated_mlp else 1)
    biases += (inner + sizes.hidden) * form.mlp_bias
    norms = form.norm_vectors * form.layer_norms * sizes.hidden
    return biases + norms + form.norm_vectors * 2 * sizes.head_dim * form.qk_norm


def _bridge(sizes: Sizes) -> int:
    """The projections into and out of the residual width, where the embeddings are narrower."""
    return 2 * sizes.embedding * sizes.hidden if sizes.embedding != sizes.hidden else 0
