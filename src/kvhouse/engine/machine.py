"""What the engine's own products reach on this machine, in each dtype that models compute in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from kvhouse.devices import others, passes
from kvhouse.meters import Rates

#: Dtypes that a model is computed in.
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Inputs of the matrix that is read to measure bandwidth.
_INPUTS = 4096

#: Multiplies ``[T, K]`` with the transpose of ``[N, K]`` of ones into ``[T, N]``.
_Product = Callable[[torch.Tensor, torch.Tensor], object]
#: Makes that of a weight; None where it cannot.
_Make = Callable[[torch.Tensor], _Product | None]


def rates() -> Rates:
    """Measure torch's and the engine's compiled products on all cores, and what one row reads.

    The faster of the two counts in each dtype: it is a step's floor that is asked for, and the
    engine takes its own product where it can.
    """
    with _all_cores() as cores:
        makes: list[tuple[str, _Make]] = [("torch's", _torch_product)]
        compiled = _compiled()
        if compiled:
            makes.append(("the engine's compiled", compiled))
        flops: dict[str, float] = {}
        for dtype in _DTYPES:
            found = [_flops(make, dtype) for _, make in makes]
            flops[str(dtype).removeprefix("torch.")] = max(found)
        bandwidth = max(_bandwidth(make, cores) for _, make in makes)
    names = " and ".join(name for name, _ in makes)
    return Rates(bandwidth, flops, f"{names} products")


@contextmanager
def _all_cores() -> Iterator[int]:
    """Torch on every core that this process may run on, whatever it was told before."""
    cores, before = len(others.cores()), torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        yield cores
    finally:
        torch.set_num_threads(before)


def _torch_product(weight: torch.Tensor) -> _Product:
    turned = weight.T
    return lambda x, out: torch.mm(x, turned, out=out)


def _compiled() -> _Make | None:
    """Makes the engine's own product; None without Numba or for this processor."""
    try:
        from kvhouse.engine.kernels.cpu.linear import Linear, cannot
    except (ImportError, OSError):
        return None

    def make(weight: torch.Tensor) -> _Product | None:
        if cannot([weight]):
            return None
        linear = Linear([weight])
        return lambda x, out: linear(x, out=out)

    return make if make(torch.ones(16, 64)) else None


def _flops(make: _Make, dtype: torch.dtype) -> float:
    """Operations per second of products of square matrices; 0 where there is no product."""
    if make(torch.ones(256, 256, dtype=dtype)) is None:
        return 0.0

    def of(side: int) -> float:
        weight = torch.ones(side, side, dtype=dtype)
        return _rate(make, weight, side, 2 * side**3)

    return passes.best_rate(of)


def _bandwidth(make: _Make, cores: int) -> float:
    """Bytes per second of a weight far larger than the caches, read for one row."""
    outputs = cores * passes.READ_BYTES // (4 * _INPUTS)
    weight = torch.ones(outputs, _INPUTS)
    return _rate(make, weight, 1, weight.nbytes)


def _rate(make: _Make, weight: torch.Tensor, tokens: int, amount: int) -> float:
    product = make(weight)
    assert product is not None
    x = torch.ones(tokens, weight.shape[1], dtype=weight.dtype)
    out = torch.empty(tokens, weight.shape[0], dtype=weight.dtype)
    product(x, out)
    return passes.rate(lambda: product(x, out), amount)
