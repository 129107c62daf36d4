"""What Python hands to a compiled program of a decoder's steps: records of numbers.

Addresses and strides are in bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: What an operation does.
LINEAR, NORM, ROTARY, CALL = range(4)

#: Numbers of dtypes.
FLOAT32, BFLOAT16 = range(2)

#: Values of ``activation``.
ACTIVATIONS = {None: 0, "silu": 1, "gelu_tanh": 2, "gelu": 3}

_WHOLE = (
    "code",
    "tokens",  # rows of the input and of the output
    "x",  # address of the first token's input
    "x_bytes",  # from one token to the next; likewise the others
    "x_dtype",
    "out",
    "out_bytes",
    "out_dtype",
    "residual",  # address of what is added, 0 for none, of the output's dtype
    "residual_bytes",
    "blocks",  # of a linear operation: address of its blocks of weights, ``BLOCK_ROWS``
    "block_count",
    "row_bytes",  # of a row of weights, a multiple of 64
    "row_step",  # from one row to the next
    "bias",  # address of float32 [size], 0 for none
    "activation",
    "gated",  # 1 where blocks come in pairs, of which the first is activated
    "weight",  # of a norm: address of float32 [size], 0 for none
    "centred",  # 1 where the mean is subtracted
    "index",  # address of the numbers of the input's rows, int64, 0 for all in their order
    "heads",  # of a norm or a rotary embedding: vectors of a token
    "head_bytes",  # from one head to the next
    "size",  # elements of a vector
    "cosines",  # of a rotary embedding: address of float32 [tokens, size / 2]
    "sines",
    "table_bytes",  # from one token's to the next
    "function",  # address of another compiled function, which all threads call with ``data``
    "data",
)

#: Where the counters of an operation lie: in cache lines of their own.
TAKEN, PRESENT, OP_BYTES = 256, 320, 384

#: An operation.
OP: Any = np.dtype(
    {
        "names": [*_WHOLE, "epsilon", "taken", "present"],
        "formats": [*[np.int64] * len(_WHOLE), np.float32, np.int64, np.int64],
        "offsets": [*range(0, 8 * len(_WHOLE) + 1, 8), TAKEN, PRESENT],
        "itemsize": OP_BYTES,
    }
)

#: 16 rows of weights.
BLOCK_ROWS: Any = np.dtype(
    [
        ("address", np.int64),  # of the first row
        ("rows", np.int64),  # how many there are, at most 16
        ("column", np.int64),  # of the output that the first one gives
    ]
)

#: A program: operations one after the other.
PROGRAM: Any = np.dtype(
    [
        (name, np.int64)
        for name in (
            "ops",  # address of the operations
            "count",
            "threads",  # how many are asked for
            "workers",  # how many have begun
            "scratch",  # address of the threads' working memory
            "scratch_bytes",  # of one thread
        )
    ]
)
