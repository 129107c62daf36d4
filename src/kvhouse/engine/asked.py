"""What a task has asked for, on its way from the engine's thread to the task's event loop."""

from __future__ import annotations

import asyncio

from kvhouse.engine.answers import Answers
from kvhouse.engine.outputs import Completion, Token

#: New tokens, each with the place of its prompt, and all completions when there is no more to come.
Given = tuple[list[tuple[int, Token]], list[Completion] | None]
#: What comes of a step, or why nothing does.
Output = Given | BaseException


class Asked:
    """What one task has asked for, between its event loop and the engine's thread."""

    def __init__(self) -> None:
        self.answers: list[Answers] = []
        self.loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()

    def give(self, output: Output) -> None:
        """Hand an output over; called in the event loop, also by whoever wants an end of it."""
        self._outputs.put_nowait(output)

    async def take(self) -> Given:
        """Wait for the next output; raises what went wrong."""
        output = await self._outputs.get()
        if isinstance(output, BaseException):
            raise output
        return output


def give_all(outputs: list[tuple[Asked, Output]]) -> None:
    """Hand outputs over that are all for the event loop in which this is called."""
    for asked, output in outputs:
        asked.give(output)
