"""What Python hands to compiled code: records of numbers.

Addresses and strides are in bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Values of ``reach`` in a ``CALL``.
REACHES = {"all": 0, "window": 1, "chunk": 2}

_LAYER = (
    "block_size",
    "block_bytes",  # from one block to the next
    "key_size",  # elements of what lies at ``keys``: of latents, the rotary part
    "value_size",
    "keys",  # address of the first block's; likewise the next three
    "values",
    "key_scales",
    "value_scales",
    "key_head",  # bytes of a head's keys in a block
    "value_head",
    "key_scale_head",
    "value_scale_head",
    "key_rotation",  # side of the rotation, 0 for none
    "value_rotation",
    "reach",
    "reach_tokens",
    "kv_heads",
)
_STEP = (
    "tokens",  # in the pack
    "units",  # shares of the work, each for one of its heads or a part of one
    "works",  # address of the shares, ``WORK``
    "tables",  # address of all rows' block tables, int64, one behind the other
    "places",  # address of each token's block and offset, int64 [tokens, 2]
    "next",  # address of the number of the next unit that nobody has taken
    "workers",  # address of the number of threads that have begun
    "scratch",  # address of the threads' working memory
    "scratch_bytes",  # of one thread
    "dtype",  # of what comes in and goes out: 0 float32, 1 bfloat16, 2 float16
)
_ATTENTION = (
    "query",
    "query_token",  # from one token's queries to the next
    "query_head",
    "query_heads",
    "out",
    "shared",  # query heads to a KV head
    "unit_heads",  # KV heads that a unit takes together
    "part_heads",  # query heads of a KV head that a unit takes together
    "parts",  # units that a KV head is divided into by query heads
    "each",  # units of a share
    "key_tile",  # keys that are scored before their values are added up
    "sinks",  # address of float32 [query_heads], 0 for none
    "partials",  # address of what units of split rows leave for each other
    "partial_bytes",  # of one unit
    "merges",  # address of how many units of a split row are done, int64
)
_INPUTS = (
    "key_in",
    "key_in_token",
    "key_in_head",
    "value_in",
    "value_in_token",
    "value_in_head",
)
_FACTORS = (
    "query_factor",
    "cap",  # 0 for none
    "unit",  # what capped scores are multiplied by
)

#: One call of a kernel for one layer.
CALL: Any = np.dtype(
    [(name, np.int64) for name in _LAYER + _STEP + _ATTENTION + _INPUTS]
    + [(name, np.float32) for name in _FACTORS],
    align=True,
)

#: The same as Python fills it: numpy takes longer for a record than some calls do for their work.
Call: Any = np.ctypeslib.as_ctypes_type(CALL)

#: A share of a call's work: some tokens of a request, and keys that they may see.
WORK = np.dtype(
    [
        (name, np.int64)
        for name in (
            "token",  # the first one, counted in the pack
            "tokens",
            "position",  # of the first one in its request
            "table",  # where the request's table begins among all
            "table_start",  # index of the table's first block in the request
            "begin",  # the first key
            "end",  # one past the last key
            "splits",  # shares that the keys are split into
            "split",  # number of this one
            "record",  # number of the first split's partial result
            "merge",  # number of the counter that all splits share
        )
    ]
)

#: What a thread has at hand for its present unit; its working memory begins with it.
UNIT = np.dtype(
    [
        (name, np.int64)
        for name in (
            "place",  # number of the unit among those of its share
            "head",  # first KV head
            "kv_heads",  # KV heads
            "first",  # first query head, counted from a KV head's first
            "heads",  # query heads of each KV head
            "head_rows",  # rows of a KV head: one for each query head of each token
            "rows",  # those of all its KV heads, one KV head after the other, token by token
            "chunk",  # rows that are multiplied at once; not in pairs
            "query",  # address of float32 [rows, size]; in pairs bfloat16, in each row's first half
            "sums",  # address of float32 [rows, value_size]
            "scores",  # address of float32 [rows, key_tile]; in pairs weights lie as queries do
            "peaks",  # address of float32 [rows]
            "totals",  # address of float32 [rows]
            "across",  # address of what is turned: latents as float32 [size, lanes], or panels
        )
    ]
)
