"""Why another calculator's number is another: the count that reproduces it to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from kvhouse.formats import get_format
from kvhouse.spec import Layer, ModelSpec

_BF16 = get_format("bf16")


def reason(spec: ModelSpec, config: Mapping[str, Any], tokens: int, theirs: int) -> str:
    """What a calculator did that said ``theirs``, to follow its name."""
    return (
        _all_alike(spec, config, tokens, theirs)
        or _left_out(spec, tokens, theirs)
        or _counted_again(spec, tokens, theirs)
        or "differs for a reason that no simple count explains"
    )


def _by_kind(spec: ModelSpec, tokens: int) -> dict[str, int]:
    """Bytes of each kind of part; states as a kind of their own."""
    found: Counter[str] = Counter()
    for layer in spec.layers:
        for part in layer.parts:
            found[part.kind] += part.kept_tokens(tokens) * part.token_bytes(_BF16, "bfloat16")
            found[part.kind] += part.state_bytes("bfloat16")
    return {kind: amount for kind, amount in found.items() if amount}


def _all_alike(spec: ModelSpec, config: Mapping[str, Any], tokens: int, theirs: int) -> str | None:
    """All layers as full attention, or all as sliding, by the sizes that the config names."""
    decoder = config.get("text_config") or config
    layers, heads = decoder.get("num_hidden_layers"), decoder.get("num_attention_heads")
    if not layers or not heads:
        return None
    kv_heads = decoder.get("num_key_value_heads", heads)
    dim = decoder.get("head_dim") or decoder["hidden_size"] // heads
    window = min(tokens, decoder.get("sliding_window") or tokens)
    told = f"counts keys and values of {kv_heads} heads of {dim} for"
    for kept, which in ((tokens, "all"), (window, f"the last {window:,}")):
        if theirs == 2 * layers * kept * kv_heads * dim * 2:
            rest = f"in {layers} layers, but of these {_kinds(spec, tokens)}"
            return f"{told} {which} tokens {rest}"
    return None


def _kinds(spec: ModelSpec, tokens: int) -> str:
    counted = Counter(
        " + ".join(_in_words(part, tokens) for part in layer.parts) for layer in spec.layers
    )
    return ", ".join(f"{number} are {words}" for words, number in counted.items())


def _in_words(part: Layer, tokens: int) -> str:
    kept = part.kept_tokens(tokens)
    if kept in (0, tokens):
        elements = " and ".join(f"{count} x {size}" for count, size in part.vectors)
        return f"{part.kind} of {elements}" if elements else part.kind
    return f"{part.kind} that keeps {kept:,}"


def _left_out(spec: ModelSpec, tokens: int, theirs: int) -> str | None:
    """Some kinds, and not the others."""
    amounts = _by_kind(spec, tokens)
    total = sum(amounts.values())
    for number in range(1, len(amounts)):
        for kinds in combinations(amounts, number):
            if total - sum(amounts[kind] for kind in kinds) == theirs:
                return f"leaves out what is needed as: {', '.join(kinds)}"
    return None


def _counted_again(spec: ModelSpec, tokens: int, theirs: int) -> str | None:
    """One kind several times."""
    amounts = _by_kind(spec, tokens)
    for kind, amount in amounts.items():
        times, rest = divmod(theirs - sum(amounts.values()) + amount, amount)
        if rest == 0 and times > 1:
            return f"counts {kind} {times} times"
    return None
