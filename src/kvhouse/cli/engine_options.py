"""Options of the commands that run a real model, and the engine that they ask for.

Each group has the options of the one before it and some more, so that a command offers what makes
sense for it, and an `EngineConfig` is spelled out here alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvhouse.cli import options, tier_options
from kvhouse.units import parse_bytes

if TYPE_CHECKING:
    from kvhouse.engine import EngineConfig

#: The pool when none is given: enough for a few conversations on any machine.
DEFAULT_KV_MEMORY = "1GiB"

#: How keys and values are stored by default: as the model computes them.
FORMAT_OF = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

RunModel = Annotated[
    str,
    typer.Argument(
        help="smollm2 or gemma-3-270m, whose weights come with packages; a directory with "
        "safetensors; a GGUF file; or org/name of the Hugging Face Hub, which is downloaded once."
    ),
]
EngineMemory = Annotated[
    str, typer.Option("--kv-memory", metavar="SIZE", help="Memory for keys and values: 512MiB.")
]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16: weights and arithmetic.")]
EngineFormat = Annotated[
    str | None,
    typer.Option("--kv-format", help="fp32, bf16, fp16, fp8, int8 or int4. By default as --dtype."),
]
Rotation = Annotated[
    bool | None,
    typer.Option(
        "--kv-rotation/--no-kv-rotation",
        help="Rotate keys and values before int8 or int4 rounds them. By default for int4.",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-kv-cache",
        help="Keep no keys and values: each token computes all before it again, to see what that "
        "costs.",
    ),
]
FastPath = Annotated[
    bool,
    typer.Option(
        "--fast-path/--no-fast-path",
        help="Compute common decoder blocks by kvhouse's own code, after a trial against "
        "transformers'; without it all is computed by transformers, to compare.",
    ),
]
TierDirectory = Annotated[
    Path | None,
    typer.Option(
        "--tier-directory",
        metavar="DIR",
        help="Where the files of --nvme-memory are made. By default in the system's place for "
        "temporary files, which may lie in memory.",
    ),
]
SharePrefixes = Annotated[
    bool,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Share the blocks of equal prefixes, where policy and model allow it.",
    ),
]


def format_of(kv_format: str | None, dtype: str) -> str:
    """The KV format that is asked for, or that of the model's dtype."""
    return kv_format or FORMAT_OF.get(dtype, dtype)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How keys and values are kept, and how the model is computed: of ``chat``."""

    kv_memory: EngineMemory = DEFAULT_KV_MEMORY
    kv_format: EngineFormat = None
    kv_rotation: Rotation = None
    fast_path: FastPath = True
    max_length: options.MaxLength = None
    block_size: options.BlockSize = 16

    def config(self, dtype: str) -> EngineConfig:
        """The engine that is asked for, of a model that is computed in ``dtype``.

        Raises:
            KvhouseError: A size is none.
        """
        from kvhouse.engine import EngineConfig

        return EngineConfig(
            kv_memory=parse_bytes(self.kv_memory),
            kv_format=format_of(self.kv_format, dtype),
            kv_rotation=self.kv_rotation,
            fast_path=self.fast_path,
            max_length=self.max_length,
            block_size=self.block_size,
        )


@dataclass(frozen=True, slots=True)
class StepOptions(EngineOptions):
    """And how large its steps may be: of ``calibrate``."""

    token_budget: options.TokenBudget = 2048
    max_running: options.MaxRunning = 256

    def config(self, dtype: str) -> EngineConfig:
        """See ``EngineOptions.config``."""
        # Not super().config: ``slots=True`` makes the class anew, and super() means the first one.
        return replace(
            EngineOptions.config(self, dtype),
            token_budget=self.token_budget,
            max_running=self.max_running,
        )


@dataclass(frozen=True, slots=True)
class PoolOptions(StepOptions):
    """And how the pool is handed out: of ``verify``."""

    policy: options.Policy = "paged"
    watermark: options.Watermark = 0.05
    prefix_cache: options.PrefixCache = False

    def config(self, dtype: str) -> EngineConfig:
        """See ``EngineOptions.config``."""
        return replace(
            StepOptions.config(self, dtype),
            policy=self.policy,
            watermark=self.watermark,
            prefix_cache=self.prefix_cache,
        )


@dataclass(frozen=True, slots=True)
class TieredOptions(PoolOptions):
    """And what lies below the pool: of ``run``, ``bench`` and ``serve``."""

    host_memory: tier_options.HostMemory = None
    nvme_memory: tier_options.NvmeMemory = None
    tier_directory: TierDirectory = None

    def config(self, dtype: str) -> EngineConfig:
        """See ``EngineOptions.config``."""
        from kvhouse.replayer.tiering import Tiering

        host, nvme = options.size(self.host_memory), options.size(self.nvme_memory)
        return replace(
            PoolOptions.config(self, dtype),
            tiering=Tiering(host, nvme_memory=nvme),
            tier_directory=self.tier_directory,
        )
