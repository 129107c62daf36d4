"""Sends requests: at their arrival times whatever happens, or so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from kvhouse.bench.records import LoadRecord
from kvhouse.bench.target import Ask, Failed, Target, Usage
from kvhouse.errors import KvhouseError
from kvhouse.replayer.prompts import Prompts
from kvhouse.replayer.stop import Stop
from kvhouse.replayer.trace_request import TraceRequest

#: Seconds between two looks at whether to stop.
_LOOK = 0.1
#: The longest that a refused sender waits because it was told to.
MOST_RETRY_AFTER = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of a load.

    Attributes:
        records: Of the requests that were sent, in the order of the trace.
        seconds: From the first arrival to the end.
    """

    records: list[LoadRecord]
    seconds: float

    @property
    def ended(self) -> int:
        """How many ended, well or not."""
        return sum(record.ended is not None for record in self.records)


async def send(
    target: Target,
    requests: Sequence[TraceRequest],
    *,
    concurrency: int | None = None,
    timeout: float = 600.0,
    seed: int = 0,
    on_ended: Callable[[LoadRecord], None] | None = None,
    stop: Stop | None = None,
) -> Sent:
    """Send a trace, and wait for every answer.

    Open loop, each request is sent at its time after the first one's arrival, however many are
    under way: a target that is too slow does not slow the load down. Closed loop, as many senders
    as ``concurrency`` says send one request after the other, in the order of the trace. One that
    is refused and told when to come back waits so long, at most ``MOST_RETRY_AFTER``.

    Times are taken by the event loop's clock.

    Args:
        target: Whoever answers.
        requests: In the order of arrival.
        concurrency: None for open loop.
        timeout: Seconds from its sending after which a request is given up.
        seed: Decides the prompts.
        on_ended: Called for each request that ended, well or not.
        stop: Ends it soon; what is under way is cancelled.

    Raises:
        KvhouseError: A concurrency or a timeout out of range.
    """
    if concurrency is not None and concurrency < 1:
        raise KvhouseError("--concurrency is at least 1")
    if not timeout > 0:
        raise KvhouseError("--timeout is above 0 seconds")
    prompts = Prompts(seed, target.vocab_size)
    load = _Load(target, prompts, timeout, on_ended)
    sending = asyncio.ensure_future(
        load.open(requests) if concurrency is None else load.closed(requests, concurrency)
    )
    watching = asyncio.ensure_future(_cancel_on(stop or Stop(), sending))
    try:
        await sending
    except asyncio.CancelledError:
        if stop is None or not stop.asked:
            raise
        stop.cut_short = True
    finally:
        watching.cancel()
    load.records.sort(key=lambda record: record.index)
    return Sent(load.records, load.now())


async def _cancel_on(stop: Stop, task: asyncio.Future[None]) -> None:
    while not stop.asked:
        await asyncio.sleep(_LOOK)
    task.cancel()


class _Load:
    """One load under way."""

    def __init__(
        self,
        target: Target,
        prompts: Prompts,
        timeout: float,
        on_ended: Callable[[LoadRecord], None] | None,
    ) -> None:
        self.records: list[LoadRecord] = []
        self._target = target
        self._prompts = prompts
        self._timeout = timeout
        self._on_ended = on_ended
        self._clock = asyncio.get_running_loop().time
        self._begun = self._clock()

    def now(self) -> float:
        """Seconds since the first arrival."""
        return self._clock() - self._begun

    async def open(self, requests: Sequence[TraceRequest]) -> None:
        """Send each at its time."""
        first: float | None = None
        async with asyncio.TaskGroup() as group:
            for index, request in enumerate(requests):
                ask = self._ask(request)
                if first is None:  # the first prompt is made by now
                    first, self._begun = request.arrival, self._clock()
                arrival = request.arrival - first
                await asyncio.sleep(max(0.0, arrival - self.now()))
                group.create_task(self._send(LoadRecord(index, request, arrival), ask))

    async def closed(self, requests: Sequence[TraceRequest], concurrency: int) -> None:
        """Keep so many under way."""
        coming = enumerate(requests)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(requests))):
                group.create_task(self._sender(coming))

    async def _sender(self, coming: Iterator[tuple[int, TraceRequest]]) -> None:
        for index, request in coming:
            ask = self._ask(request)
            wait = await self._send(LoadRecord(index, request, self.now()), ask)
            if wait:
                await asyncio.sleep(min(wait, MOST_RETRY_AFTER))

    def _ask(self, request: TraceRequest) -> Ask:
        return Ask(self._prompts.of(request), request.output_tokens)

    async def _send(self, record: LoadRecord, ask: Ask) -> float | None:
        """Send one and note what comes; gives the seconds that the target wants to be left."""
        self.records.append(record)
        record.sent = self.now()
        wait = None
        try:
            async with asyncio.timeout(self._timeout):
                await self._take(record, ask)
        except Failed as failure:
            record.fail(failure.kind, failure.reason, self.now())
            wait = failure.retry_after
        except TimeoutError:
            record.fail("timeout", f"no whole answer within {self._timeout:g} s", self.now())
        if self._on_ended:
            self._on_ended(record)
        return wait

    async def _take(self, record: LoadRecord, ask: Ask) -> None:
        async with aclosing(self._target.ask(ask)) as answer:
            async for part in answer:
                if isinstance(part, Usage):
                    record.count(part)
                else:
                    record.take(part.tokens, self.now())
        record.finish()
