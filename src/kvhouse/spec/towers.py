"""Parts of a model beside its decoder, such as those for images and sound: an estimate."""

from __future__ import annotations

from collections.abc import Mapping

_PARTS = {"vision_config": "images", "audio_config": "sound"}
_WIDTHS = ("hidden_size", "embed_dim", "width", "d_model", "vt_hidden_size")
_LAYERS = ("num_hidden_layers", "depth", "layers", "encoder_layers", "vt_num_hidden_layers")
_INNER = ("intermediate_size", "mlp_dim", "encoder_ffn_dim", "vt_intermediate_size")
_MOST = 2**20


def towers(config: Mapping[str, object], hidden: int, wrapped: bool) -> tuple[int, str]:
    """About how many weights the parts for images and sound have, and what to say of it.

    A tower is taken as a transformer of the stated width and depth, ``layers × (4 width² + 3 width
    × inner)``, and two matrices into the decoder's width ``hidden``. The result is for memory, to
    which such a part adds a few per cent; where a part states no sizes it is left out. ``wrapped``
    says that the decoder is one part of a larger model, which must have others.
    """
    thinker = config.get("thinker_config")
    config = {**thinker, **config} if isinstance(thinker, dict) else config
    weights, counted, missing = 0, [], []
    for name, what in _PARTS.items():
        part = config.get(name)
        if not isinstance(part, dict) or not part:
            continue
        width, layers = _size(part, _WIDTHS), _size(part, _LAYERS)
        if not width or not layers:
            missing.append(what)
            continue
        inner = _size(part, _INNER) or 4 * width
        weights += layers * (4 * width**2 + 3 * width * inner) + hidden * (width + hidden)
        counted.append(what)
    stated = any(name in config for name in _PARTS)
    notes = ["what lies beside its decoder is not counted"] if wrapped and not stated else []
    if counted:
        notes.append(f"its parts for {' and '.join(counted)} are estimated at {weights:,} weights")
    if missing:
        notes.append(f"its parts for {' and '.join(missing)} are not counted")
    return weights, "; ".join(notes)


def _size(part: Mapping[str, object], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = part.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST:
            return value
    return None
