"""Groups of options, against a command that has the same options one by one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from kvhouse import devices, spec
from kvhouse.cli import engine_options, options
from kvhouse.cli.groups import given, grouped
from kvhouse.cli.sampling_options import SamplingOptions
from kvhouse.cli.setup_options import SetupOptions
from kvhouse.cli.tier_options import TierOptions
from kvhouse.cli.trace_options import PartOptions, TraceOptions
from kvhouse.engine import EngineConfig, SamplingParams
from kvhouse.replayer import Setup, Tiering, Trace, TraceRequest
from kvhouse.replayer.trace_select import Selection

Size = Annotated[int, typer.Option(metavar="N", help="How many.")]
Names = Annotated[list[str] | None, typer.Option("--name", metavar="TEXT", help="Repeatable.")]
Switch = Annotated[bool, typer.Option("--on/--no-on", help="A switch.")]
Maybe = Annotated[bool | None, typer.Option("--turn/--no-turn", help="Or neither.")]


@dataclass(frozen=True, slots=True)
class Few:
    """A group."""

    size: Size = 3
    on: Switch = True


@dataclass(frozen=True, slots=True)
class Many(Few):
    """Another one, in which an option of the first has another default."""

    size: Size = 4
    names: Names = None
    turn: Maybe = None


def by_name(arguments: list[str], command: Any) -> tuple[str, str]:
    """What help says, and what a call prints."""
    made = typer.Typer(add_completion=False)
    made.command()(command)
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    shown, ran = runner.invoke(made, ["--help"]), runner.invoke(made, arguments)
    assert shown.exit_code == ran.exit_code == 0, ran.output
    return shown.output, ran.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["x"],
        ["--no-on", "--size", "9", "x", "--no-turn"],
        ["x", "--name", "a", "--name", "b", "--turn", "--last"],
    ],
)
def test_a_group_is_to_the_user_as_its_options_one_by_one(arguments):
    @grouped
    def short(what: str, *, many: Many, last: bool = False) -> None:
        """Do it."""
        print(what, many.size, many.on, many.names or [], many.turn, last)

    def long(
        what: str,
        size: Size = 4,
        on: Switch = True,
        names: Names = None,
        turn: Maybe = None,
        last: bool = False,
    ) -> None:
        """Do it."""
        print(what, size, on, names or [], turn, last)

    long.__name__ = short.__name__
    assert by_name(arguments, short) == by_name(arguments, long)


def test_what_was_given_is_named_as_it_is_written():
    assert given(Many()) == ()
    assert given(Many(size=5, on=False, names=["a"], turn=False)) == (
        "--size",
        "--no-on",
        "--name",
        "--no-turn",
    )
    assert given(Many(turn=True)) == ("--turn",)


def test_a_group_s_field_without_a_default_is_refused():
    """typer would be shown dataclasses' own mark in place of a default."""

    @dataclass(frozen=True, slots=True)
    class Bare:
        size: Size

    @dataclass(frozen=True, slots=True)
    class Made:
        size: Size = field(default_factory=int)

    for group in (Bare, Made):

        def command(*, asked):
            raise AssertionError(asked)

        command.__annotations__ = {"asked": group}
        with pytest.raises(TypeError, match=f"{group.__name__}.size: give it a default"):
            grouped(command)


def test_groups_have_the_defaults_of_what_they_make():
    """The command line repeats them, so that its help needs no room."""
    told = engine_options.TieredOptions().config("float32")
    assert told == EngineConfig()
    assert engine_options.EngineOptions().config("bfloat16") == EngineConfig(kv_format="bf16")
    assert TraceOptions().selection() == PartOptions().selection() == Selection()
    assert TierOptions().tiering() == Tiering()
    assert options.SloOptions().slo() is None
    assert SamplingOptions().params(seed=None).plain


@pytest.mark.parametrize(
    ("group", "made", "renamed"),
    [
        (
            TraceOptions(9, 2.0, 1.0, 5.0, 0.5, 7, 99, 3.0),
            "selection",
            {"sample_seed": "seed", "cut": "max_length"},
        ),
        (
            TierOptions("1GiB", "2GB/s", "3GiB", "4GB/s", "5us", "arc", "through"),
            "tiering",
            {"link_latency": "latency", "tier_replacement": "replacement", "tier_write": "write"},
        ),
    ],
)
def test_each_option_reaches_what_the_group_makes(group, made, renamed):
    """None is left at its default, and none stands in the place of another."""
    value, plain = getattr(group, made)(), getattr(type(group)(), made)()
    for one in fields(group):
        name = renamed.get(one.name, one.name)
        assert getattr(value, name) != getattr(plain, name), name
    numbers = {"memory": {"1GiB": 2**30, "3GiB": 3 * 2**30}, "link": {"2GB/s": 2e9, "4GB/s": 4e9}}
    for one in fields(group):
        asked = getattr(group, one.name)
        expected = numbers.get(one.name.rpartition("_")[2], {"5us": 5e-6}).get(asked, asked)
        assert getattr(value, renamed.get(one.name, one.name)) == expected


def test_each_option_of_a_replay_reaches_its_setup():
    """But for the three that commands give by themselves, since sweep tries several of them."""
    asked = SetupOptions(
        "2GiB", 77, "best", True, 4, "2/3", True, 64, "int8", 32, 5, "shortest", True, 0.25, 0.5
    )
    trace = Trace("none", (TraceRequest(0.0, 4, 2),))
    model, device, tiering = spec.load("smollm2"), devices.get("l4"), Tiering(host_memory=9)
    made = asked.setup(
        trace, model, device, tiering, policy="contiguous-max", kv_format="fp8", block_size=8
    )
    assert made == Setup(
        trace,
        model,
        device,
        kv_memory=2 * 2**30,
        kv_blocks=77,
        policy="contiguous-max",
        fit="best",
        prefix_cache=True,
        kv_format="fp8",
        weight_dtype="int8",
        block_size=8,
        max_length=64,
        token_budget=32,
        max_running=5,
        order="shortest",
        prefill_first=True,
        watermark=0.25,
        utilization=0.5,
        as_backlog=True,
        tiering=tiering,
        tp=4,
        replica=(2, 3),
    )
    assert SetupOptions().setup(trace, model, device, Tiering()) == Setup(trace, model, device)
    assert len(fields(asked)) == len(given(asked)) == 15


def test_each_option_of_an_answer_reaches_how_it_is_sampled():
    asked = SamplingOptions(9, 0.5, 7, 0.75, 0.125, 1.25)
    made = asked.params(seed=3, stop=["end"], logprobs=2)
    assert made == SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.75,
        min_p=0.125,
        repetition_penalty=1.25,
        stop=("end",),
        seed=3,
        logprobs=2,
    )
    assert asked.max_new_tokens == 9
    assert len(fields(asked)) == len(given(asked)) == 6


def test_each_option_of_an_engine_reaches_its_config(tmp_path):
    asked = engine_options.TieredOptions(
        "1MiB", "int8", True, False, 64, 8, 32, 4, "contiguous", 0.5, True, "2MiB", "3MiB", tmp_path
    )
    assert asked.config("float16") == EngineConfig(
        kv_memory=2**20,
        kv_format="int8",
        kv_rotation=True,
        fast_path=False,
        max_length=64,
        block_size=8,
        token_budget=32,
        max_running=4,
        policy="contiguous",
        watermark=0.5,
        prefix_cache=True,
        tiering=Tiering(2 * 2**20, nvme_memory=3 * 2**20),
        tier_directory=tmp_path,
    )
    assert len(fields(asked)) == len(given(asked)) == 14
