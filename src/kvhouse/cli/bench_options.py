"""Options of ``kvhouse bench`` alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from kvhouse.cli.engine_options import DEFAULT_KV_MEMORY, TieredOptions

Target = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|URL",
        help="A model, as for `kvhouse run`, or the address of an OpenAI-compatible server such "
        "as http://127.0.0.1:8000 (extra `load`).",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Of a model: so many requests in one batch. With --trace or --requests, or of a "
        "server: so many senders, each of which sends its next request when it has its answer.",
    ),
]
Prompt = Annotated[int | None, typer.Option(metavar="TOKENS", help="Tokens of each prompt: 128.")]
Generate = Annotated[
    int | None, typer.Option(metavar="TOKENS", help="Tokens that each request gets: 128.")
]
Repeats = Annotated[
    int | None, typer.Option(metavar="N", help="How many times a batch is timed: 3.")
]
Trace = Annotated[
    str | None,
    typer.Option(
        help="Send this traffic at its arrival times: a file, azure-conv-2023 or mooncake-conv, "
        "or generated traffic, as for replay."
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(metavar="R", help="Send R requests a second on average, by a Poisson process."),
]
Requests = Annotated[
    int | None,
    typer.Option(metavar="N", help="How many: 100 with --rate, four for each sender otherwise."),
]
Timeout = Annotated[
    str, typer.Option(metavar="TIME", help="Give up a request that takes longer: 90s, 10min.")
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="The server's key. By default the first of KVHOUSE_API_KEY, which is better, since "
        "others see a command line.",
    ),
]
ServedModel = Annotated[
    str | None,
    typer.Option(
        "--served-model",
        metavar="NAME",
        help="The model's name at the server. By default the first that it lists.",
    ),
]
VocabSize = Annotated[
    int | None,
    typer.Option(
        "--vocab-size",
        metavar="N",
        help="A server's prompts are random token ids below N: 32000.",
    ),
]
Out = Annotated[
    list[str] | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write the figures (FILE.json), or a row for each request of a load (FILE.parquet, "
        "extra `parquet`); repeatable.",
    ),
]
Seed = Annotated[int, typer.Option(help="Makes prompts and generated traffic repeatable.")]


@dataclass(frozen=True, slots=True)
class BenchOptions(TieredOptions):
    """The engine in this process."""

    kv_memory: Annotated[
        str,
        typer.Option(
            "--kv-memory", metavar="SIZE", help="With a load: memory for keys and values."
        ),
    ] = DEFAULT_KV_MEMORY


#: Those that a batch, whose pool holds exactly itself, has no use for.
OF_A_LOAD = frozenset(
    {
        "--kv-memory",
        "--max-length",
        "--max-running",
        "--watermark",
        "--prefix-cache",
        "--host-memory",
        "--nvme-memory",
        "--tier-directory",
    }
)
