"""From what was asked to token ids, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import TYPE_CHECKING

from kvhouse.engine.chat import Turn, chat_ids
from kvhouse.engine.prompt import prompt_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Prompts:
    """Makes prompts, one after the other, beside the engine: a long text delays no step.

    Args:
        tokenizer: Is copied, since a tokenizer serves one thread at a time.
        vocab_size: Ids are below it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> None:
        self._tokenizer = deepcopy(tokenizer)
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, "kvhouse-prompts")
        #: Another copy, for the event loop's thread; made where log-probabilities are asked for.
        self._decoder: PreTrainedTokenizerBase | None = None
        self._texts: dict[int, str] = {}

    async def of(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        """The ids of each prompt.

        Raises:
            RequestRejected: One of them is no prompt for this model.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encoded, prompts)

    async def of_chat(self, turns: Sequence[Turn]) -> list[int]:
        """The ids of a conversation, by the model's template.

        Raises:
            RequestRejected: The model has none, or it refuses the turns.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, chat_ids, turns, self._tokenizer)

    def text(self, token: int) -> str:
        """What one token alone stands for; "" without a tokenizer."""
        if self._tokenizer is None:
            return ""
        if token not in self._texts:
            self._decoder = self._decoder or deepcopy(self._tokenizer)
            text = self._decoder.decode([token], clean_up_tokenization_spaces=False)
            assert isinstance(text, str)
            self._texts[token] = text
        return self._texts[token]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _encoded(self, prompts: Sequence[str | list[int]]) -> list[list[int]]:
        return [prompt_ids(prompt, self._tokenizer, self._vocab_size) for prompt in prompts]
