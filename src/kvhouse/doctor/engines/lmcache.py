"""LMCache, a tier below vLLM's pool, in vLLM's log; and what makes the keys of blocks differ.

Sources: lmcache/v1/cache_engine.py, lmcache/integration/vllm/vllm_v1_adapter.py and
lmcache/v1/token_database.py; vllm/v1/core/kv_cache_utils.py.
"""

from __future__ import annotations

from kvhouse.doctor.line import line

LMCACHE = (
    line(
        "vllm",
        "LMCache ",
        " cost ",
        r"Retrieved <N> out of .{0,80}?tokens.{0,40}?cost <F> ms",
        "loaded_tokens load_ms",
        kind="series",
        only=True,
    ),
    line(
        "vllm",
        "LMCache ",
        "Retrieve ",
        r"Retrieve <N> tokens takes: <F> ms",
        "loaded_tokens load_ms",
        kind="series",
        only=True,
    ),
    line(
        "vllm",
        "LMCache ",
        "hit tokens: ",
        r"Total tokens <N>, LMCache hit tokens: <N>",
        "looked_up_tokens external_hit_tokens",
        kind="series",
        only=True,
    ),
    line(
        "vllm",
        "cache_salt",
        "",
        r"['\"]?cache_salt['\"]?[=:] ?(?!None|null)['\"]?\S",
        sets={"salted": 1},
        kind="series",
        anywhere=True,
    ),
    line(
        "vllm",
        "PYTHONHASHSEED",
        " set",
        r"PYTHONHASHSEED (?:is )?not set|without PYTHONHASHSEED set",
        sets={"random_keys": True},
    ),
    line(
        "vllm",
        "PYTHONHASHSEED",
        "NONE_HASH",
        r"random per-process NONE_HASH seed",
        sets={"random_keys": True},
    ),
)
