"""Options of the commands that answer with a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunModel = Annotated[
    str,
    typer.Argument(
        help="smollm2 or gemma-3-270m, whose weights come with packages; a directory with "
        "safetensors; a GGUF file; or org/name of the Hugging Face Hub, which is downloaded once."
    ),
]
MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", metavar="TOKENS", help="Longest answer.")
]
Temperature = Annotated[
    float, typer.Option(help="0 takes the most likely token; higher is more varied.")
]
TopK = Annotated[
    int,
    typer.Option("--top-k", metavar="N", help="Choose among the N likeliest tokens; 0 for all."),
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p", metavar="SHARE", help="Choose among the likeliest that reach this probability."
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p", metavar="SHARE", help="Leave out what is less likely than this share of the top."
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option("--repetition-penalty", help="Above 1: what was said becomes less likely."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End the answer before this text; repeatable."),
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
