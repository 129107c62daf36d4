"""What ``kvhouse replay`` does once it knows what is asked: a drive, a comparison or a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from kvhouse.cli.output import line_log, plan_log, print_json, warn
from kvhouse.cli.pictures import Pictures, picture_of
from kvhouse.cli.progress import (
    INTERRUPTED,
    interruptible,
    leave_if_partial,
    leave_partial,
    progress,
)

if TYPE_CHECKING:
    from kvhouse.calibration.profile import Profile
    from kvhouse.replayer import SLO, Setup


@dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed, and how it is shown."""

    setup: Setup
    model: str
    device: str
    slo: SLO | None
    timeline: int | None
    as_json: bool
    pictures: Pictures
    profile: Profile | None = None

    @property
    def _requests(self) -> int:
        """Requests of the trace."""
        return len(self.setup.part.requests)

    @property
    def _title(self) -> str:
        """The traffic and the device in words."""
        title = f"{self._requests:,} requests of {self.setup.trace.name} on {self._devices}"
        return f"{title}, {self.profile.about}" if self.profile else title

    @property
    def _devices(self) -> str:
        tp = self.setup.tp
        return self.device if tp == 1 else f"each of {tp} {self.device} (tensor parallel)"

    def _print_json(self, partial: bool, figures: dict[str, Any]) -> None:
        """Print figures with what they are for, and whether Ctrl-C cut them short."""
        head = {
            "model": self.model,
            "device": self.device,
            "profile": self.profile.about_dict() if self.profile else None,
        }
        print_json({**head, "partial": partial, **figures})

    def drive(self, events_file: str | None, plan_log_file: str | None) -> None:
        """One drive."""
        recorder = self.pictures.recorder(self.setup)
        with (
            interruptible() as stop,
            plan_log(plan_log_file, stop) as on_plan,
            line_log(events_file, "event log", stop) as on_event,
            self.pictures.open(stop) as draw,
            progress("replay", self._requests, as_json=self.as_json) as on_ended,
        ):
            result = self.setup.drive(
                slo=self.slo,
                timeline=self.timeline,
                on_ended=on_ended,
                on_plan=on_plan,
                on_event=on_event,
                stop=stop,
                recorder=recorder,
            )
            if recorder:
                draw(picture_of(self.setup, self.model, self.device, [result], [recorder]))
        if self.as_json:
            self._print_json(result.partial, result.to_dict())
        else:
            from rich.console import Console

            from kvhouse.views.replay import show_results

            show_results(Console(), self._title, [result])
        leave_if_partial([result], 1)

    def compare(self, policies: list[str] | None) -> None:
        """Several policies, one column each."""
        from kvhouse.core.policy import POLICIES
        from kvhouse.replayer.compare import compare, variants

        setups = variants(self.setup, policies or POLICIES)
        recorders = [self.pictures.recorder(setup) for setup in setups]
        total = self._requests * len(setups)
        with (
            interruptible() as stop,
            self.pictures.open(stop) as draw,
            progress("replays", total, as_json=self.as_json) as on_ended,
        ):
            results = compare(
                setups,
                slo=self.slo,
                timeline=self.timeline,
                on_ended=on_ended,
                recorders=recorders,
                stop=stop,
            )
            if self.pictures:
                done = recorders[: len(results)]
                draw(picture_of(self.setup, self.model, self.device, results, done))
        if self.as_json:
            figures = [result.to_dict() for result in results]
            self._print_json(stop.cut_short, {"results": figures})
        else:
            from rich.console import Console

            from kvhouse.views.replay import show_results

            show_results(Console(), self._title, results)
        leave_if_partial(results, len(setups))

    def find(self, what: str, share: float) -> None:
        """A search, with every replay that it took."""
        from kvhouse.replayer.find import Goal, SearchStopped, find_max_rate, find_min_memory

        search = find_max_rate if what == "max-rate" else find_min_memory
        goal = Goal(self.slo, share)
        try:
            with interruptible() as stop, progress(what, None, as_json=self.as_json) as on_ended:
                found = search(self.setup, goal, on_ended=on_ended, stop=stop)
        except SearchStopped as reason:
            warn(f"{what}: {reason}")
            raise typer.Exit(INTERRUPTED) from None
        if self.as_json:
            self._print_json(found.partial, found.to_dict())
        else:
            from rich.console import Console

            from kvhouse.views.find import show_found

            show_found(Console(), self._title, found)
        if found.partial:
            leave_partial(f"{what} ended early, after {len(found.probes)} replays")
