"""From the turns of a conversation to token ids, by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvhouse.errors import RequestRejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Who speaks and what: ``{"role": "user", "content": "Hello"}``.
Turn = Mapping[str, str]


def chat_ids(turns: Sequence[Turn], tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """The ids of a conversation to which the model is to give the next answer.

    The template writes the tokens that begin a text, so none are added to it.

    Raises:
        RequestRejected: The model has no chat template, or its template refuses the turns.
    """
    if tokenizer is None or not tokenizer.chat_template:
        raise RequestRejected(
            "this model has no chat template, as models that were not tuned for chat: "
            "give it a prompt to go on from instead"
        )
    from jinja2 import TemplateError

    try:
        encoded: Any = tokenizer.apply_chat_template(
            [dict(turn) for turn in turns],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
        )
    except TemplateError as error:
        raise RequestRejected(f"the model's chat template refuses this: {error}") from None
    return [int(token) for token in encoded["input_ids"]]
