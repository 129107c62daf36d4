"""Three shapes of traffic on SmolLM2, predicted by a profile and run for real, side by side.

Short chat, long prompts, and a pool so small that requests are preempted: ``kvhouse verify`` in
a row, with what the errors are held to. Leave the machine alone meanwhile; takes about three
minutes with a profile (``kvhouse calibrate smollm2 --out FILE``) on two cores.

    python benchmarks/verify_shapes.py --profile FILE [--shape NAME] [--json FILE] [--steps FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kvhouse.calibration.calibrate import refuse_other
from kvhouse.calibration.profile import Profile, read_profile
from kvhouse.calibration.verify import Verification, verify
from kvhouse.engine import EngineConfig
from kvhouse.engine.load import LoadedModel, load_model
from kvhouse.engine.traced import run_trace, scenario_for
from kvhouse.replayer import Scenario, read_trace
from kvhouse.views.calibration import show_verification

#: The largest error of each figure that is held to, as a share of what was measured.
TOLERANCES = {
    "output_tokens_per_second": 0.10,
    "per_token_seconds_mean": 0.10,
    "first_token_seconds_p50": 0.15,
    "first_token_seconds_p99": 0.25,
    "running_mean": 0.10,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Traffic, as ``kvhouse trace`` takes it, and the engine that it meets."""

    trace: str
    config: EngineConfig


SHAPES = {
    "short chat": Shape(
        "poisson:rate=6,prompt=lognormal(80,0.6,max=300),output=uniform(20,60),requests=200,seed=1",
        EngineConfig(kv_memory=2**30, max_length=1024),
    ),
    "long prompts": Shape(
        "poisson:rate=1,prompt=uniform(400,1200),output=uniform(10,50),requests=48,seed=2",
        EngineConfig(kv_memory=2**30, max_length=2048),
    ),
    "starved": Shape(
        "poisson:rate=4,prompt=uniform(30,120),output=uniform(60,200),requests=80,seed=3",
        EngineConfig(kv_memory=64 * 2**20, max_length=512, watermark=0.0),
    ),
}


def scenario_of(shape: Shape, loaded: LoadedModel) -> Scenario:
    """The traffic and the pool that it meets."""
    return scenario_for(shape.config, loaded.spec, read_trace(shape.trace), dtype=loaded.dtype)


def warm_up(loaded: LoadedModel) -> None:
    """Compile and set up what the first steps of a process do."""
    few = read_trace("backlog:prompt=200,output=4,requests=3")
    config = EngineConfig()
    run_trace(loaded, scenario_for(config, loaded.spec, few, dtype=loaded.dtype), config)


def missed(found: Verification) -> list[str]:
    """The figures whose error is larger than what is held to."""
    return [
        f"{figure.name}: {figure.error:+.1%}, held to {TOLERANCES[figure.name]:.0%}"
        for figure in found.figures
        if figure.name in TOLERANCES
        and not (figure.error is not None and abs(figure.error) <= TOLERANCES[figure.name])
    ]


def main() -> int:
    """Run the shapes; 1 where a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", required=True, type=Path)
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=Path, help="write the seconds of every step as JSON")
    asked = parser.parse_args()
    profile: Profile = read_profile(asked.profile)
    loaded = load_model("smollm2")
    warm_up(loaded)
    console, figures, steps, wrong = Console(), {}, {}, []
    for name in asked.shape or SHAPES:
        scenario = scenario_of(SHAPES[name], loaded)
        refuse_other(profile, loaded.spec, SHAPES[name].config, loaded.dtype)
        times = profile.steps(loaded.spec, scenario.layout)
        found = verify(loaded, scenario, times, SHAPES[name].config)
        show_verification(console, name, found, profile)
        wrong += [f"{name}: {line}" for line in missed(found)]
        if not found.exactness.exact:
            wrong.append(f"{name}: level 1 is not exact")
        figures[name] = found.to_dict()
        steps[name] = [result.seconds for result in found.record.results]
        console.print()
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))
    if asked.steps:
        asked.steps.write_text(json.dumps(steps))
    for line in wrong:
        console.print(f"missed: {line}", style="red")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
