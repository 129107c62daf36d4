"""The fast path of a model: compiled where it can be, else in torch."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedModel

from kvhouse.engine.adapter import Adapter
from kvhouse.engine.fast.decoder import understand
from kvhouse.engine.fast.vocabulary import NotUnderstood
from kvhouse.engine.kernels import AttentionKernel
from kvhouse.engine.kernels.reference import ReferenceKernel
from kvhouse.spec import ModelSpec


def fast_path(model: PreTrainedModel, kernel: AttentionKernel, spec: ModelSpec) -> Adapter:
    """The fast path of a model, each part tried against the original.

    Raises:
        NotUnderstood: A part of it is none that we know, or computes something else.
    """
    plain = understand(model, kernel)
    if isinstance(kernel, ReferenceKernel):
        note = "so is its attention"
    else:
        # Numba takes a good part of a second to import, and the kernel has imported it.
        from kvhouse.engine.fast.compiled import compile_decoder
        from kvhouse.engine.kernels.cpu.kernel import NumbaKernel

        assert isinstance(kernel, NumbaKernel)
        try:
            return compile_decoder(plain, kernel, spec)
        except NotUnderstood as error:
            note = str(error)
    return replace(plain, paths=replace(plain.paths, note=note))
