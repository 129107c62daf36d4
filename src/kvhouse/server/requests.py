"""What may be asked, with bounds. What would change an answer and is not supported is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.server.settings import MOST_ANSWERS

#: Most of the likeliest tokens that are named at each position, as in OpenAI's API.
MOST_TOP_LOGPROBS = 20
#: Parameters of OpenAI's API of which only values that change nothing are taken.
UNSUPPORTED = frozenset(
    {
        *("presence_penalty", "frequency_penalty", "logit_bias", "echo", "suffix"),
        *("tools", "tool_choice", "response_format"),
    }
)
_SEED_MASK = 2**64 - 1
#: More tokens than any request has.
_MANY = 2**40

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[TokenId], Field(min_length=1)]
Text = Annotated[str, Field(min_length=1)]
NonEmptyStop = Annotated[str, Field(min_length=1, max_length=1000)]
#: A penalty that the engine does not have: only its neutral value is taken.
NoPenalty = Annotated[float, Field(ge=0, le=0)]


class _Asking(BaseModel):
    """Fields of no name that is known are refused, and none is silently converted."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was sent
        """A null is an absent field."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class StreamOptions(_Asking):
    """What a stream has beside its tokens."""

    include_usage: bool | None = Field(None, description="Send usage in a last chunk.")
    include_obfuscation: bool | None = Field(None, description="Accepted; nothing is padded.")


class TextFormat(_Asking):
    """The one format of an answer."""

    type: Literal["text"]


class Sampling(_Asking):
    """What both endpoints take."""

    model: str = Field(max_length=1000)
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: NonEmptyStop | Annotated[list[NonEmptyStop], Field(max_length=16)] | None = None
    temperature: float | None = Field(None, ge=0, le=2, description="By default 1; 0 is greedy.")
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    top_k: int | None = Field(None, ge=-1, lt=2**31, description="0 or -1 for all tokens.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1000)] | None = None
    ignore_eos: bool | None = Field(None, description="Go on after the model's end tokens.")
    presence_penalty: NoPenalty | None = Field(None, description="Only 0 is supported.")
    frequency_penalty: NoPenalty | None = Field(None, description="Only 0 is supported.")
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = Field(
        None, description="Only an empty one is supported."
    )
    user: str | None = Field(None, description="Accepted; nothing depends on it.")

    @model_validator(mode="after")
    def _no_options_without_a_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream=true")
        return self

    @property
    def answers(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def params(self, logprobs: int | None) -> SamplingParams:
        """How tokens are chosen, in the engine's words."""
        stop = self.stop or ()
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition_penalty=self.repetition_penalty or 1.0,
            seed=None if self.seed is None else self.seed & _SEED_MASK,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
        )


class CompletionRequest(Sampling):
    """A text to go on from."""

    prompt: (
        Text
        | Ids
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_ANSWERS)]
        | Annotated[list[Ids], Field(min_length=1, max_length=MOST_ANSWERS)]
    ) = Field(description="A text, token ids, or a list of either.")
    max_tokens: int | None = Field(None, ge=1, lt=_MANY, description="By default 16.")
    logprobs: int | None = Field(
        None, ge=0, le=MOST_TOP_LOGPROBS, description="Name so many of the likeliest tokens."
    )
    echo: Literal[False] | None = Field(None, description="Only false is supported.")
    suffix: Annotated[str, Field(max_length=0)] | None = Field(
        None, description="Only an empty one is supported."
    )
    best_of: int | None = Field(None, ge=1, le=MOST_ANSWERS, description="Only n is supported.")

    @model_validator(mode="after")
    def _no_choosing(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != self.answers:
            raise ValueError("best_of is supported only where it equals n")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt, as a text or as token ids."""
        prompt: Sequence[Any] = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        return [list(prompt)] if isinstance(prompt[0], int) else list(prompt)


class TextPart(_Asking):
    """A piece of a message; texts are all that is understood."""

    type: Literal["text"]
    text: str


class Message(_Asking):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description="developer is given to the model's template as system."
    )
    content: str | Annotated[list[TextPart], Field(min_length=1)]

    def turn(self) -> dict[str, str]:
        """As chat templates take it."""
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class ChatRequest(Sampling):
    """A conversation to be continued by the model."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096)]
    max_tokens: int | None = Field(None, ge=1, lt=_MANY)
    max_completion_tokens: int | None = Field(
        None, ge=1, lt=_MANY, description="By default all that there is room for."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOP_LOGPROBS)
    response_format: TextFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = Field(
        None, description="Only an empty list is supported."
    )
    tool_choice: Literal["none", "auto"] | None = None

    @model_validator(mode="after")
    def _agree(self) -> ChatRequest:
        lengths = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(lengths) > 1:
            raise ValueError("max_tokens and max_completion_tokens differ: give one")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs=true")
        return self

    @property
    def most_tokens(self) -> int | None:
        """The longest answer, where it is said."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def named(self) -> int | None:
        """How many of the likeliest tokens to name; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None
