"""Forms of the older families that grew out of encoders and encoder-decoder pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvhouse.spec.config import MOST_TOKENS, Config
from kvhouse.spec.weights import Form, Part, linear


def _positions(padding: int = 0) -> Callable[[Config], int]:
    def weights(config: Config) -> int:
        rows = config.integer("max_position_embeddings", MOST_TOKENS) + padding
        return rows * _narrow(config)

    return weights


def _narrow(config: Config) -> int:
    return config.maybe("embedding_size") or config.hidden


def _types(config: Config) -> Part:
    """A vector for each type of token."""
    return Part(others=config.size("type_vocab_size", 0) * _narrow(config))


def _norm(config: Config) -> Part:
    """A norm over the embeddings."""
    return Part(others=2 * _narrow(config))


def _transform(config: Config) -> Part:
    """A matrix and a norm before the output projection."""
    narrow = _narrow(config)
    return linear(narrow, config.hidden, True) + Part(others=2 * narrow)


def _head(config: Config) -> Part:
    """The same, and the output projection's bias."""
    return _transform(config) + _head_bias(config)


def _head_bias(config: Config) -> Part:
    tied = config.flag("tie_word_embeddings", True)  # untied, there are two
    return Part(others=config.size("vocab_size") * (1 if tied else 2))


def _bridge(config: Config) -> Part:
    """From the embeddings' width to the residual stream's."""
    narrow = _narrow(config)
    return linear(config.hidden, narrow, True) if narrow != config.hidden else Part()


def _pooler(config: Config) -> Part:
    return linear(config.hidden, config.hidden, True)


def _tasks(config: Config) -> Part:
    """ERNIE: a vector for each type of task, if a flag says so."""
    types = config.size("task_type_vocab_size", 0) * config.flag("use_task_id", False)
    return Part(others=types * config.hidden)


def _trocr_positions(config: Config) -> int:
    learned = config.flag("use_learned_position_embeddings", True)
    return _positions(2)(config) if learned else 0


def _trocr_norm(config: Config) -> Part:
    return _norm(config) if config.flag("layernorm_embedding", True) else Part()


_BERT = Form(
    norm=2,
    gated=False,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    final_norm=False,
    positions=_positions(),
    once=(_types, _norm, _head),
    narrow="embedding_size",
)
_BART = replace(
    _BERT,
    cross=True,
    widths=("decoder_ffn_dim",),
    positions=_positions(2),
    once=(_norm,),
    narrow="",
)
_SINUSOIDAL = replace(_BART, positions=_positions(), once=())

ENCODERS = {
    **dict.fromkeys(["bert", "roberta", "camembert", "xlm-roberta", "data2vec-text"], _BERT),
    **dict.fromkeys(["bart", "mvp", "plbart"], _BART),
    "bert-generation": replace(_BERT, once=(_norm, _head_bias)),
    "big_bird": replace(_BERT, qkv_bias="use_bias", once=(_types, _norm, _head, _pooler)),
    "bigbird_pegasus": replace(
        _BART,
        qkv_bias="use_bias",
        output_bias="use_bias",
        positions=_positions(),
        ties=False,
    ),
    "biogpt": replace(
        _BERT, final_norm=True, positions=_positions(2), once=(), widths=("intermediate_size",)
    ),
    "blenderbot-small": replace(_BART, positions=_positions()),
    "blenderbot": replace(_SINUSOIDAL, final_norm=True),
    "electra": replace(_BERT, head_bias=True, once=(_types, _norm, _transform, _bridge)),
    "ernie": replace(_BERT, once=(_types, _norm, _head, _tasks)),
    "marian": _SINUSOIDAL,
    "mbart": replace(_BART, final_norm=True),
    "megatron-bert": replace(_BERT, final_norm=True, once=(_types, _head)),
    "pegasus": replace(_SINUSOIDAL, final_norm=True),
    "roberta-prelayernorm": replace(_BERT, final_norm=True),
    "trocr": replace(_BART, positions=_trocr_positions, once=(_trocr_norm,)),
    "whisper": replace(_SINUSOIDAL, final_norm=True, key_bias=False),
    "xlm-roberta-xl": replace(_BERT, final_norm=True, once=(_types, _head)),
}
