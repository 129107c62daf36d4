"""A profile from outside: benches of a server whose step times are known, and what is refused.

The server is the replayer with known rates; only what a bench of it would have written is kept.
"""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from kvhouse import spec
from kvhouse.bench.records import LoadRecord
from kvhouse.bench.store import as_json, as_parquet
from kvhouse.bench.stored import read_load
from kvhouse.bench.target import Usage
from kvhouse.calibration.outside import fit_loads
from kvhouse.calibration.profile import read_profile
from kvhouse.cli import app
from kvhouse.core.scheduler import SchedulerConfig
from kvhouse.costs import FittedSteps, StepRates
from kvhouse.errors import KvhouseError
from kvhouse.layout import KVLayout
from kvhouse.replayer.executor import ModelledExecutor
from kvhouse.replayer.scenario import Scenario
from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.traces import read_trace

SPEC = spec.load("smollm2")
LAYOUT = KVLayout.of(SPEC, "bf16")
FIGURES = {
    "target": "http://there:8000",
    "model": "theirs",
    "made": "2026-01-02T03:04:05+00:00",
    "prompts": "ids",
}
#: A CPU's: every token costs; two of other machines: kinks at 4 tokens, and flat until 256.
SERVERS = {
    "cpu": StepRates((1, 8, 64), (0.03, 0.04, 0.1), 0.01, 1e-4, 1e-5, 3e-11, 1e-10, 3e-12),
    "kink": StepRates((1, 4, 2048), (0.04, 0.06, 2.5), 0.008, 1e-4, 5e-5, 6e-11, 1e-10, 3e-12),
    "flat": StepRates((1, 256, 2048), (0.012, 0.014, 0.12), 1e-3, 1e-5, 1e-6, 8e-12, 8e-12, 1e-14),
}
#: Of a lone row's step, how many requests arrive, and how many there are in all.
IDLE, BUSY = (0.0008, 40), (0.01, 150)
#: None of these is ever beside another.
ALONE = (1e-5, 40)
LENGTHS = "prompt=uniform(40,1500),output=uniform(20,200)"


class Watched(ModelledExecutor):
    """Notes on a clock that stands still while nothing runs when each token came."""

    def __init__(self, times):
        super().__init__(times)
        self.now, self.came = 0.0, {}

    @property
    def leaps(self):
        return False  # every step is looked at

    def execute(self, plan):
        result = super().execute(plan)
        self.now += result.seconds
        for token in result.sampled:
            self.came.setdefault(token.request, []).append(self.now)
        return result


def records_of(rates, load, *, lengths=LENGTHS, seed=3, token_budget=2048):
    """What a bench records of a server with these rates."""
    often, requests = load
    rate = often / rates.knot_seconds[0]
    trace = read_trace(f"poisson:rate={rate:.6f},{lengths},requests={requests},seed={seed}")
    limits = SchedulerConfig(8192, token_budget)
    scenario = Scenario(trace, LAYOUT, "paged", 0, limits, kv_blocks=20_000)
    executor, ended = Watched(FittedSteps(SPEC, LAYOUT, rates)), []
    scenario.drive(executor, on_ended=ended.append)
    records = []
    for one in sorted(ended, key=lambda one: one.index):
        record = LoadRecord(
            one.index,
            TraceRequest(one.arrival, one.prompt_tokens, one.max_new_tokens),
            one.arrival,
            sent=one.arrival,
            first_token=one.first_token,
            last_token=one.finished,
            ended=one.finished,
            output_tokens=one.generated,
            usage=Usage(one.prompt_tokens, one.generated, 0),
        )
        came = executor.came[one.request]
        record.gaps.extend(b - a for a, b in pairwise(came))
        records.append(record)
    return records


@pytest.fixture
def stored(tmp_path):
    """Writes records as a bench does, and reads them as a calibration does."""
    written = []

    def keep(records, kind="json", **figures):
        path = tmp_path / f"{len(written)}.{kind}"
        written.append(path)
        write = as_json if kind == "json" else as_parquet
        path.write_bytes(write(FIGURES | figures, records))
        return read_load(str(path))

    return keep


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("server", SERVERS)
def test_a_known_server_s_steps_come_back(server, seed, stored):
    """Decoding within 12 %, 3 % on average, and prompts within 5 %: it is the kinks that miss."""
    rates = SERVERS[server]
    loads = [
        stored(records_of(rates, IDLE, seed=seed)),
        stored(records_of(rates, BUSY, seed=seed), "parquet"),
    ]
    found, residuals = fit_loads(loads, SPEC, LAYOUT, 2048)
    assert residuals.mean <= residuals.cross_validated_mean < 0.04
    known, fitted = FittedSteps(SPEC, LAYOUT, rates), FittedSteps(SPEC, LAYOUT, found)

    def error(rows):
        return abs(fitted.of(rows).seconds / known.of(rows).seconds - 1)

    decoding = [
        error([(context, 1, True)] * batch)
        for batch in (1, 2, 3, 4, 6, 8)
        for context in (200, 800, 1400)
    ]
    assert max(decoding) < 0.12
    assert sum(decoding) / len(decoding) < 0.03
    prompts = [[(0, tokens, True)] for tokens in (200, 400, 800, 1200)]
    assert max(map(error, prompts)) < 0.05
    assert max(error([*prompt, *[(700, 1, True)] * 4]) for prompt in prompts) < 0.05


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_any_server_whose_steps_are_straight_lines(seed, stored):
    """Decoding within 5 %, prompts within 1 %, whatever the rates are."""
    chance = random.Random(seed)
    step, token = chance.uniform(0.005, 0.1), chance.uniform(2e-5, 1e-3)
    rates = StepRates(
        (1, 2048),
        (step, step + 2047 * token),
        chance.uniform(0, 0.01),
        chance.uniform(0, 1e-4),
        chance.uniform(0, 1e-4),
        chance.uniform(1e-12, 1e-10),
        chance.uniform(1e-12, 1e-10),
        chance.uniform(1e-15, 1e-12),
    )
    loads = [stored(records_of(rates, load, seed=seed)) for load in (IDLE, BUSY)]
    found, _ = fit_loads(loads, SPEC, LAYOUT, 2048)
    known, fitted = FittedSteps(SPEC, LAYOUT, rates), FittedSteps(SPEC, LAYOUT, found)
    for batch in (1, 2, 4, 6):
        for context in (200, 800, 1400):
            rows = [(context, 1, True)] * batch
            assert fitted.of(rows).seconds == pytest.approx(known.of(rows).seconds, rel=0.05)
    for tokens in (200, 500, 1200):
        rows = [(0, tokens, True)]
        assert fitted.of(rows).seconds == pytest.approx(known.of(rows).seconds, rel=0.01)


def test_prompts_that_take_several_steps(stored):
    rates = SERVERS["kink"]
    loads = [stored(records_of(rates, load, token_budget=512)) for load in (IDLE, BUSY)]
    found, _ = fit_loads(loads, SPEC, LAYOUT, 512)
    known, fitted = FittedSteps(SPEC, LAYOUT, rates), FittedSteps(SPEC, LAYOUT, found)
    for rows in ([(0, 512, False)], [(512, 512, False)], [(1024, 200, True)]):
        assert fitted.of(rows).seconds == pytest.approx(known.of(rows).seconds, rel=0.02)


def test_what_stood_in_the_cache_is_not_computed(stored):
    """Half of each prompt was cached and cost nothing but its reading."""
    rates = SERVERS["cpu"]
    whole = records_of(rates, IDLE), records_of(rates, BUSY)
    found, _ = fit_loads([stored(records) for records in whole], SPEC, LAYOUT, 2048)
    for records in whole:
        for record in records:
            tokens = record.usage.prompt_tokens
            record.usage = Usage(2 * tokens, record.output_tokens, tokens)
    doubled, _ = fit_loads([stored(records) for records in whole], SPEC, LAYOUT, 2048)
    # The same seconds for as many computed tokens: as much a token, less for their attention.
    first, other = FittedSteps(SPEC, LAYOUT, found), FittedSteps(SPEC, LAYOUT, doubled)
    rows, after = [(0, 600, True)], [(600, 600, True)]
    assert other.of(after).seconds == pytest.approx(first.of(rows).seconds, rel=0.03)


def test_failed_and_unfinished_requests_count_beside_the_others(stored):
    """Their rows were in the steps, but their own times are not gone by."""
    records = records_of(SERVERS["flat"], IDLE), records_of(SERVERS["flat"], BUSY)
    full, before = fit_loads([stored(one) for one in records], SPEC, LAYOUT, 2048)
    for record in records[1][::5]:
        record.error = "cut"
    rates, after = fit_loads([stored(one) for one in records], SPEC, LAYOUT, 2048)
    assert after.steps < before.steps
    assert rates.knot_seconds[0] == pytest.approx(full.knot_seconds[0], rel=0.02)


@pytest.mark.parametrize(
    ("loads", "lengths", "reason"),
    [
        ([(0.0008, 10)], LENGTHS, "10 answers came token by token"),
        ([ALONE], LENGTHS, "about as many requests decoded together"),
        ([ALONE, ALONE], LENGTHS, "about as many requests decoded together"),
        ([(1.0, 30)], "prompt=uniform(40,90),output=100", "requests found the server idle"),
        ([IDLE, BUSY], "prompt=200,output=50", "all requests had about as many tokens"),
    ],
)
def test_loads_that_do_not_tell_the_parts_apart(loads, lengths, reason, stored):
    seen = [stored(records_of(SERVERS["flat"], load, lengths=lengths)) for load in loads]
    with pytest.raises(KvhouseError, match=reason) as error:
        fit_loads(seen, SPEC, LAYOUT, 2048)
    assert "\n" not in str(error.value)


def test_answers_that_came_at_once_have_no_steps(stored):
    records = records_of(SERVERS["flat"], IDLE)
    for record in records:
        record.first_token, record.gaps = record.last_token, type(record.gaps)("d")
    with pytest.raises(KvhouseError, match="0 answers came token by token"):
        fit_loads([stored(records)], SPEC, LAYOUT, 2048)


def test_texts_that_nobody_counted(stored):
    records = [replace(one, usage=None) for one in records_of(SERVERS["flat"], ALONE)]
    with pytest.raises(KvhouseError, match="nobody knows how long they were"):
        fit_loads([stored(records, prompts="text")], SPEC, LAYOUT, 2048)
    # Ids were counted before they were sent, so then it goes on to the next question.
    with pytest.raises(KvhouseError, match="decoded together"):
        fit_loads([stored(records, prompts="ids")], SPEC, LAYOUT, 2048)


def row(**change):
    return records_of(SERVERS["flat"], (0.0008, 1))[0].row() | change


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"records": []}, "lacks 'target'"),
        (FIGURES, "holds no 'records'"),
        (FIGURES | {"records": {}}, "holds no 'records'"),
        (FIGURES | {"made": 3, "records": []}, "lacks 'made'"),
        (FIGURES | {"records": [7]}, "request 1: is no row"),
        (FIGURES | {"records": [{"index": 1}]}, "request 1: is no row"),
        (FIGURES | {"records": [row(), row(sent=None)]}, "request 2: sent is None"),
        (FIGURES | {"records": [row(sent=float("nan"))]}, "request 1: sent is nan"),
        (FIGURES | {"records": [row(output_tokens=-1)]}, "output_tokens is -1"),
        (FIGURES | {"records": [row(output_tokens=True)]}, "output_tokens is True"),
        (FIGURES | {"records": [row(prompt_tokens=1.5)]}, "prompt_tokens is 1.5"),
        (FIGURES | {"records": [row(between_tokens_p50="a\nb")]}, "between_tokens_p50 is "),
        (FIGURES | {"records": [row(last_token=0.0)]}, "times do not ascend"),
        (FIGURES | {"records": [row(last_token=None)]}, "times do not ascend"),
    ],
)
def test_a_file_that_no_bench_wrote(values, reason, tmp_path):
    path = tmp_path / "b.json"
    path.write_text(json.dumps(values))
    with pytest.raises(KvhouseError, match=reason) as error:
        read_load(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"PAR1", b"PAR1 PAR1"])
def test_what_is_neither_json_nor_parquet(content, tmp_path):
    path = tmp_path / "b.parquet"
    path.write_bytes(content)
    with pytest.raises(KvhouseError, match=r"b\.parquet") as error:
        read_load(str(path))
    assert "\n" not in str(error.value)


def test_what_is_not_there(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(KvhouseError, match="is no file"):
            read_load(str(path))


def run(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    """Files of an idle and of a busy server."""
    at = tmp_path_factory.mktemp("benches")
    files = at / "idle.json", at / "busy.parquet"
    files[0].write_bytes(as_json(FIGURES, records_of(SERVERS["flat"], IDLE)))
    files[1].write_bytes(as_parquet(FIGURES, records_of(SERVERS["flat"], BUSY)))
    return files


def test_from_benches_to_a_replay(benches, tmp_path):
    """The replay of the busy load by the profile comes near the server that was benched."""
    out, given = tmp_path / "p.json", [f"--from-bench={file}" for file in benches]
    printed = json.loads(run("calibrate", "smollm2", *given, "--out", out, "--json").stdout)
    profile = read_profile(out)
    assert printed == json.loads(out.read_text())
    assert (profile.machine, profile.dtype, profile.kv_format) == (None, "bfloat16", "bf16")
    origin = "from a bench of http://there:8000 (theirs) at 2026-01-02, seen from outside"
    assert profile.origin == origin
    words = " ".join(run("calibrate", "smollm2", *given, "--out", out).stdout.split())
    assert f"Estimated {origin}." in words
    assert "median steps and lone prompts" in words
    rate = BUSY[0] / SERVERS["flat"].knot_seconds[0]
    trace = f"poisson:rate={rate:.6f},{LENGTHS},requests={BUSY[1]},seed=3"
    replay = ("replay", trace, "--model", "smollm2", "--profile", out)
    figures = json.loads(run(*replay, "--kv-memory", "10GiB", "--json").stdout)
    assert figures["profile"]["origin"] == origin
    assert figures["profile"]["processor"] is None
    records = records_of(SERVERS["flat"], BUSY)
    first = sum(one.first_token - one.sent for one in records) / len(records)
    assert figures["first_token_seconds"]["mean"] == pytest.approx(first, rel=0.03)
    whole = sum(one.ended - one.sent for one in records) / len(records)
    assert figures["latency_seconds"]["mean"] == pytest.approx(whole, rel=0.03)
    assert "seen from outside" in run(*replay, "--kv-memory", "10GiB").stdout
    for more, reason in (
        ((), "its memory: give --kv-memory"),
        (("--kv-memory", "1GiB", "--host-memory", "1GiB", "--host-link", "9GB/s"), "loading pays"),
        (("--kv-memory", "1GiB", "--kv-format", "int8"), "of KV format 'bf16', not int8"),
    ):
        with pytest.raises(KvhouseError, match=reason):
            run(*replay, *more)


def test_a_poor_fit_is_said(tmp_path):
    """Every other request of a server that was disturbed took three times as long."""
    records = records_of(SERVERS["flat"], IDLE) + records_of(SERVERS["flat"], BUSY)
    for record in records[::2]:
        record.gaps = type(record.gaps)("d", [3 * gap for gap in record.gaps])
        late = 2 * (record.last_token - record.first_token)
        record.last_token, record.ended = record.last_token + late, record.ended + late
    parts = records[: IDLE[1]], records[IDLE[1] :]
    given = []
    for part in parts:
        file = tmp_path / f"{len(part)}.json"
        file.write_bytes(as_json(FIGURES, part))
        given.append(f"--from-bench={file}")
    result = run("calibrate", "smollm2", *given, "--json")
    missed = json.loads(result.stdout)["residuals"]["cross_validated_mean"]
    assert missed > 0.15
    assert f"missed by {missed:.0%} on average" in result.stderr


def test_a_hit_or_two_tell_no_rate(stored):
    """A block of a few prompts was cached and took a while; chunks then read as rows do."""
    loads = records_of(SERVERS["flat"], IDLE), records_of(SERVERS["flat"], BUSY)
    for record in loads[0][:3]:
        record.usage = Usage(record.usage.prompt_tokens, record.output_tokens, 16)
        record.first_token += 1e-3
        record.last_token += 1e-3
        record.ended += 1e-3
    rates, _ = fit_loads([stored(records) for records in loads], SPEC, LAYOUT, 2048)
    assert rates.chunk_byte == rates.decode_byte > 0


def test_what_the_command_refuses(benches, tmp_path):
    other = tmp_path / "other.json"
    records = records_of(SERVERS["flat"], (0.0008, 3))
    other.write_bytes(as_json(FIGURES | {"target": "http://else\n"}, records))
    idle = f"--from-bench={benches[0]}"
    out = tmp_path / "p.json"
    for arguments, reason in (
        ((idle, f"--from-bench={other}"), "of several servers|and of 'theirs'"),
        ((idle, "--dtype", "int8"), "--dtype int8: choose float32"),
        ((idle, "--token-budget", "0"), "--token-budget 0"),
        ((f"--from-bench={other}",), "3 answers came token by token"),
        ((idle, "--kv-format", "int9"), "int9"),
    ):
        with pytest.raises(KvhouseError, match=reason) as error:
            run("calibrate", "smollm2", *arguments, "--out", out)
        assert "\n" not in str(error.value)
    with pytest.raises(KvhouseError, match="is read by this command"):
        run("calibrate", "smollm2", idle, "--out", benches[0])
    assert not out.exists()
