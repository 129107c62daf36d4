"""Which kernel serves a pool."""

from __future__ import annotations

import sys
from typing import Literal

from kvhouse.engine.kernels import AttentionKernel
from kvhouse.engine.kernels.reference import ReferenceKernel
from kvhouse.engine.kv import KVTensors
from kvhouse.errors import KvhouseError

KernelName = Literal["auto", "numba", "reference"]


def make_kernel(kv: KVTensors, name: KernelName = "auto") -> AttentionKernel:
    """The kernel of this name for a pool; ``auto`` is Numba's where it can, else the reference.

    Where Numba itself is not there, ``auto`` says so on stderr, since that costs speed only until
    it is installed.

    Raises:
        KvhouseError: Numba's kernel is asked for and cannot serve this pool.
    """
    if name == "reference":
        return ReferenceKernel(kv, "as asked")
    try:
        # Numba takes a good part of a second to import.
        from kvhouse.engine.kernels.cpu.kernel import NumbaKernel
        from kvhouse.engine.kernels.cpu.layer import cannot
    except (ImportError, OSError) as error:  # not installed, or not for this numpy or machine
        line = next(iter(str(error).splitlines()), type(error).__name__)
        reason: str | None = f"Numba cannot be imported: {line}"
        if name == "auto":
            print(f"kvhouse: attention is slow in plain torch: {reason}", file=sys.stderr)
    else:
        reason = cannot(kv.layers.values())
    if reason is None:
        return NumbaKernel(kv)
    if name == "numba":
        raise KvhouseError(f"the Numba kernel cannot serve this pool: {reason}")
    return ReferenceKernel(kv, reason)
