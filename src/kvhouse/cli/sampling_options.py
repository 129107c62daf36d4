"""How a model's answers are chosen: options of ``run`` and ``chat``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvhouse.engine import SamplingParams


MaxNewTokens = Annotated[
    int, typer.Option("--max-new-tokens", metavar="TOKENS", help="Longest answer.")
]
Temperature = Annotated[
    float, typer.Option(help="0 takes the most likely token; higher is more varied.")
]
TopP = Annotated[
    float,
    typer.Option(
        "--top-p", metavar="SHARE", help="Choose among the likeliest that reach this probability."
    ),
]


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How long answers are, and how their tokens are chosen."""

    max_new_tokens: MaxNewTokens = 256
    temperature: Temperature = 0.0
    top_k: Annotated[
        int,
        typer.Option(
            "--top-k", metavar="N", help="Choose among the N likeliest tokens; 0 for all."
        ),
    ] = 0
    top_p: TopP = 1.0
    min_p: Annotated[
        float,
        typer.Option(
            "--min-p",
            metavar="SHARE",
            help="Leave out what is less likely than this share of the top.",
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        typer.Option("--repetition-penalty", help="Above 1: what was said becomes less likely."),
    ] = 1.0

    def params(
        self, *, seed: int | None, stop: Sequence[str] = (), logprobs: int | None = None
    ) -> SamplingParams:
        """How tokens are chosen.

        Raises:
            KvhouseError: An option is out of range.
        """
        from kvhouse.engine import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            stop=tuple(stop),
            seed=seed,
            logprobs=logprobs,
        )
