"""From what a caller gives as a prompt to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TYPE_CHECKING

from kvhouse.engine.sampling_params import SamplingParams
from kvhouse.errors import KvhouseError, RequestRejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_ids(
    prompt: str | Sequence[int], tokenizer: PreTrainedTokenizerBase | None, vocab_size: int
) -> list[int]:
    """Token ids of a prompt, given as text or as ids.

    Raises:
        RequestRejected: It is empty, an id is not in the vocabulary, or text without a tokenizer.
    """
    if isinstance(prompt, str):
        if tokenizer is None:
            raise RequestRejected("this model has no tokenizer: give the prompt as token ids")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise RequestRejected(f"the prompt is not valid Unicode text: {error}") from None
        ids = list(tokenizer(prompt)["input_ids"])
    else:
        ids = list(prompt)
    if not ids:
        raise RequestRejected("the prompt is empty: give at least 1 token")
    for position, token in enumerate(ids):
        whole = isinstance(token, Integral) and not isinstance(token, bool)
        if not whole or not 0 <= token < vocab_size:
            raise RequestRejected(
                f"token {token!r} at position {position} of the prompt is not in the vocabulary: "
                f"ids are whole numbers from 0 to {vocab_size - 1}"
            )
    return [int(token) for token in ids]


def refuse_a_single_prompt(prompts: Sequence[object]) -> None:
    """Refuse what would be taken for a list of prompts: a text's letters, a prompt's tokens.

    Raises:
        KvhouseError: It is one prompt.
    """
    if isinstance(prompts, str) or any(isinstance(prompt, Integral) for prompt in prompts):
        raise KvhouseError("generate takes a list of prompts: give a single one as [prompt]")


def refuse_texts_without_tokenizer(
    sampling: SamplingParams, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Refuse stop texts that nobody could ever find.

    Raises:
        RequestRejected: There are some, and no tokenizer.
    """
    if sampling.stop and tokenizer is None:
        raise RequestRejected("this model has no tokenizer: stop with stop_token_ids, not texts")
