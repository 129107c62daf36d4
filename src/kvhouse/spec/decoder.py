"""What every layer of a decoder keeps, from its config."""

from __future__ import annotations

from kvhouse.errors import UnsupportedModel
from kvhouse.spec.attention import head_dim
from kvhouse.spec.config import MOST_TOKENS, Config
from kvhouse.spec.foreign import refuse_foreign_marks
from kvhouse.spec.layers import Combined, CrossAttention, FullAttention, Layer, SlidingAttention
from kvhouse.spec.plain_models import plain_layers
from kvhouse.spec.rare_models import READERS

#: More cache layers than any model has, loops unrolled.
_MOST_SLOTS = 2**14


def decoder_layers(config: Config) -> tuple[Layer, ...]:
    """One entry for every layer that could keep something, in order.

    A layer that runs several times with a cache for each pass has an entry for each.

    Raises:
        SpecError: A field is missing or impossible.
        UnsupportedModel: The model is of a kind that cannot be counted.
    """
    _refuse_encoders(config)
    refuse_foreign_marks(config)
    reader = READERS.get(config.model_type)
    layers = plain_layers(config) if reader is None else reader(config)
    if len(layers) > _MOST_SLOTS:
        raise config.error("num_hidden_layers", f"leads to {len(layers)} layers, which is absurd")
    if _attends_across(config):
        cross = CrossAttention(config.heads, config.heads, head_dim(config), head_dim(config))
        layers = [Combined((layer, cross)) for layer in layers]
    return tuple(_without_idle_windows(config, layers))


def _refuse_encoders(config: Config) -> None:
    if config.entry.get("encoder") and not config.flag("is_decoder", False):
        raise UnsupportedModel(
            f"{config.where}: not supported: an encoder, which keeps no KV; "
            "as a decoder its field 'is_decoder' is true"
        )


def _attends_across(config: Config) -> bool:
    across = config.entry.get("cross")
    return across == "always" or (
        across == "optional" and config.flag("add_cross_attention", False)
    )


def _without_idle_windows(config: Config, layers: list[Layer]) -> list[Layer]:
    """Full attention in place of a window that is longer than any context."""
    longest = config.optional_integer("max_position_embeddings", MOST_TOKENS)

    def plain(layer: Layer) -> Layer:
        if longest and type(layer) is SlidingAttention and layer.window > longest:
            return FullAttention(layer.query_heads, layer.kv_heads, layer.key_dim, layer.value_dim)
        return layer

    return [plain(layer) for layer in layers]
