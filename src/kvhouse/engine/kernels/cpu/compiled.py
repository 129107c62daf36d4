"""Compiling the kernels that a pool needs, once: the machine code is cached."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numba import carray, cfunc, config, from_dtype, types
from numba.core.caching import FunctionCache
from numba.core.codegen import get_host_cpu_features

from kvhouse.engine import encoding
from kvhouse.engine.kernels.cpu.attend import attend_latent_units, attend_units
from kvhouse.engine.kernels.cpu.fields import CALL
from kvhouse.engine.kernels.cpu.linear_ir import FLOATS, PAIRS, SPLIT_PAIRS
from kvhouse.engine.kernels.cpu.pairs import attend_pair_units
from kvhouse.engine.kernels.cpu.program_fields import PROGRAM
from kvhouse.engine.kernels.cpu.program_units import run_program
from kvhouse.engine.kernels.cpu.vectors_ir import FORMAT_NUMBERS, ITEM_BYTES
from kvhouse.engine.kernels.cpu.write import write_units

#: Of a program's weights, for people.
_KIND_NAMES = {FLOATS: "float32", SPLIT_PAIRS: "bfloat16, widened", PAIRS: "bfloat16"}


@cache
def writer(kv_format: str, *, across: bool) -> int:
    """Address of the function that writes vectors; see ``write_units``."""
    fmt = FORMAT_NUMBERS[kv_format]
    item, lies_across = ITEM_BYTES[fmt], int(across)

    def write(data: Any) -> None:  # noqa: ANN401 - a pointer, to Numba
        write_units(fmt, item, lies_across, carray(data, 1)[0])

    return _compiled(write, f"writing {kv_format}")


@cache
def attender(kv_format: str, lanes: int, width: int) -> int:
    """Address of the function that attends to keys and values; see ``attend_units``."""
    fmt, most = FORMAT_NUMBERS[kv_format], most_rows()

    def attend(data: Any) -> None:  # noqa: ANN401 - a pointer, to Numba
        attend_units(fmt, lanes, most, width, carray(data, 1)[0])

    return _compiled(attend, f"attention over {kv_format}")


@cache
def pair_attender(kind: int, kv_format: str) -> int:
    """Address of the function that attends in pairs of bfloat16; see ``attend_pair_units``."""
    fmt = FORMAT_NUMBERS[kv_format]

    def attend_pairs(data: Any) -> None:  # noqa: ANN401 - a pointer, to Numba
        attend_pair_units(kind, fmt, carray(data, 1)[0])

    return _compiled(attend_pairs, f"attention of prompts over {kv_format}")


@cache
def latent_attender(kv_format: str, lanes: int, width: int) -> int:
    """Address of the function that attends to latents; see ``attend_latent_units``."""
    fmt, most = FORMAT_NUMBERS[kv_format], most_rows()

    def attend_latent(data: Any) -> None:  # noqa: ANN401 - a pointer, to Numba
        attend_latent_units(fmt, lanes, most, width, carray(data, 1)[0])

    return _compiled(attend_latent, f"attention over latents in {kv_format}")


@cache
def most_rows() -> int:
    """Rows whose sums the machine's vector registers hold at once."""
    return 8 if has_feature("avx512f") else 4


def has_feature(name: str) -> bool:
    """Whether code is compiled for a feature of the processor.

    It is for this one's, unless Numba is told otherwise by ``NUMBA_CPU_FEATURES``.
    """
    chosen = config.CPU_FEATURES
    return f"+{name}" in (get_host_cpu_features() if chosen is None else chosen).split(",")


@cache
def program_runner(kind: int) -> int:
    """Address of the function that runs programs; see ``run_program``."""

    def run(data: Any) -> None:  # noqa: ANN401 - a pointer, to Numba
        run_program(kind, carray(data, 1)[0])

    return _compiled(run, f"a decoder's steps in {_KIND_NAMES[kind]}", PROGRAM)


def _compiled(function: Callable[[Any], None], what: str, record: Any = CALL) -> int:  # noqa: ANN401
    """The address of a function of one record; says so on stderr if it had to be compiled."""
    began = time.perf_counter()
    made = _made(function, types.void(types.CPointer(_stamped(record))))
    _KEPT.append(made)
    if not made.cache_hits:
        seconds = time.perf_counter() - began
        print(f"kvhouse: compiled {what} in {seconds:.1f} s", file=sys.stderr)
    address: int = made.address
    return address


def _made(function: Callable[[Any], None], signature: Any) -> Any:  # noqa: ANN401 - to Numba
    """The function, from Numba's cache where it can be used.

    Its files may be damaged, by a full disk or a power cut, and then reading them raises whatever
    unpickling does; they are forgotten and written anew. Or there is no place for them, as neither
    the package's directory nor the user's can be written to.
    """
    made = cfunc(signature, cache=True, error_model="numpy")
    try:
        return made(function)
    except Exception:
        with suppress(Exception):
            FunctionCache(function).flush()
            return made(function)
    return cfunc(signature, error_model="numpy")(function)


#: Code lives as long as its function.
_KEPT: list[Any] = []


def _stamped(record: Any) -> types.Type:  # noqa: ANN401 - a dtype
    """A record with the sources of what is compiled in the name of one more field.

    The cache looks at the file of the function itself only; but the types of its arguments are
    part of its key, so that a change to any of these files is noticed.
    """
    fields: list[Any] = [(name, kind) for name, (kind, *_) in record.fields.items()]
    stamp = (f"sources_{_sources()}", np.int64)
    return from_dtype(np.dtype([*fields, stamp], align=True))


@cache
def _sources() -> str:
    sources = blake2b(digest_size=8)
    for path in [*sorted(Path(__file__).parent.glob("*.py")), Path(encoding.__file__)]:
        sources.update(path.read_bytes())
    return sources.hexdigest()
