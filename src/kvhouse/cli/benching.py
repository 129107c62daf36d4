"""What ``kvhouse bench`` does once it knows what is asked: a batch, or a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from kvhouse.cli import answering
from kvhouse.cli.output import print_json, warn, whole_file
from kvhouse.cli.progress import INTERRUPTED, interruptible, leave_partial, progress
from kvhouse.errors import KvhouseError

if TYPE_CHECKING:
    from kvhouse.bench.http_target import Server
    from kvhouse.bench.load import Sent
    from kvhouse.bench.records import LoadRecord
    from kvhouse.bench.row import Batch
    from kvhouse.bench.target import Target
    from kvhouse.engine import EngineConfig
    from kvhouse.replayer import SLO, Stop
    from kvhouse.replayer.traces import Trace

#: Seconds: a load that is sent so late is not quite the one that was asked for.
_LATE = 0.05

Write = Callable[[dict[str, Any], Sequence["LoadRecord"]], None]


@dataclass(frozen=True, slots=True)
class Outs:
    """Files with the results, and whether stdout is for JSON."""

    files: tuple[str, ...]
    as_json: bool

    @contextmanager
    def open(self, stop: Stop) -> Iterator[Write]:
        """What writes every file; each is there whole once the block ends well.

        Where ``stop`` cut the block short it is called ``FILE.partial``.
        """
        from kvhouse.bench.store import as_json, as_parquet, kind_of

        with ExitStack() as stack:
            sinks = [
                (kind_of(name), stack.enter_context(whole_file(name, "--out", stop)))
                for name in self.files
            ]

            def write(figures: dict[str, Any], records: Sequence[LoadRecord]) -> None:
                for kind, sink in sinks:
                    if sink:
                        sink((as_json if kind == "json" else as_parquet)(figures, records))

            yield write


def time_batch(
    model: str, config: EngineConfig, dtype: str, batch: Batch, repeats: int, seed: int, outs: Outs
) -> None:
    """Time a batch, and say so."""
    from kvhouse.bench.row import NothingMeasured, measure

    loaded = answering.load(model, dtype)
    with (
        interruptible() as stop,
        outs.open(stop) as write,
        progress("bench", None, unit="steps", as_json=outs.as_json) as on_step,
    ):
        try:
            result = measure(
                loaded, config, batch, repeats=repeats, seed=seed, on_step=on_step, stop=stop
            )
        except NothingMeasured as reason:
            warn(str(reason))
            raise typer.Exit(INTERRUPTED) from None
        figures = {"model": model, **result.to_dict()}
        write(figures, ())
    if outs.as_json:
        print_json(figures)
    else:
        from rich.console import Console

        from kvhouse.views.bench import show_row

        show_row(Console(), model, result)
    if result.partial:
        leave_partial(f"ended early, after {result.repeats} of {repeats} passes")


@dataclass(frozen=True, slots=True)
class Load:
    """A load that is asked for; see ``bench.load.send``."""

    trace: Trace
    concurrency: int | None
    timeout: float
    seed: int
    slo: SLO | None
    outs: Outs

    def at(self, server: Server) -> None:
        """Send it to a server."""
        from kvhouse.bench.http_target import HTTPTarget

        async def run(stop: Stop, on_ended: Callable[[object], None]) -> tuple[Sent, Target]:
            async with HTTPTarget.connect(server) as target:
                return await self._send(target, stop, on_ended), target

        self._carry_out(run)

    def here(self, model: str, config: EngineConfig, dtype: str) -> None:
        """Send it to an engine in this process."""
        from kvhouse.bench.engine_target import EngineTarget
        from kvhouse.engine import AsyncEngine, Engine

        engine = Engine(answering.load(model, dtype), config)
        if not self.outs.as_json:
            answering.say(f"kvhouse: {engine.paths.line()}")

        async def run(stop: Stop, on_ended: Callable[[object], None]) -> tuple[Sent, Target]:
            async with AsyncEngine(engine) as serving:
                target = EngineTarget(serving, model)
                await target.warm_up()
                return await self._send(target, stop, on_ended), target

        self._carry_out(run)

    async def _send(self, target: Target, stop: Stop, on_ended: Callable[[object], None]) -> Sent:
        from kvhouse.bench.load import send

        return await send(
            target,
            self.trace.requests,
            concurrency=self.concurrency,
            timeout=self.timeout,
            seed=self.seed,
            on_ended=on_ended,
            stop=stop,
        )

    def _carry_out(self, run: Callable[[Stop, Callable[[object], None]], Any]) -> None:
        import asyncio
        from datetime import UTC, datetime

        from kvhouse.bench.results import summarise

        total, made = len(self.trace.requests), datetime.now(UTC).isoformat(timespec="seconds")
        with (
            interruptible() as stop,
            self.outs.open(stop) as write,
            progress("bench", total, as_json=self.outs.as_json) as on_ended,
        ):
            sent, target = asyncio.run(run(stop, on_ended))
            result = summarise(
                sent,
                {**target.about, "made": made},
                trace=self.trace.name,
                requests=total,
                concurrency=self.concurrency,
                slo=self.slo,
            )
            figures = result.to_dict()
            write(figures, sent.records)
        if self.outs.as_json:
            print_json(figures)
        else:
            from rich.console import Console

            from kvhouse.views.bench import show_load

            show_load(Console(), result)
        if result.lag_seconds and result.lag_seconds.p99 > _LATE:
            warn(
                f"1 % of the requests were sent over {result.lag_seconds.p99:.3f} s late: this "
                "process could not keep up with the trace, or shares its cores with the target"
            )
        if stop.cut_short:
            leave_partial(f"ended early, after {sent.ended:,} of {total:,} requests")
        if not result.finished:
            first = result.errors[0]
            raise KvhouseError(f"no request was answered: {first.kind}: {first.reason}")
