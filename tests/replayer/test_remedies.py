"""Which remedy pays: on traffic whose answer is known, and equal to the replays by hand."""

import math
from dataclasses import replace

import pytest

from kvhouse import devices, spec
from kvhouse.errors import KvhouseError
from kvhouse.planner.remedies.prices import accuracy_of
from kvhouse.replayer import SLO, Setup, Tiering, Trace, TraceRequest, read_trace, replay
from kvhouse.replayer.remedies import Tries, remedies
from kvhouse.replayer.remedies.report import gain_text

GIB = 2**30
A100, LLAMA = devices.get("a100-80g"), spec.load("llama-2-7b")
FORMATS = {"fp8 KV", "int8 KV", "int4 KV"}


def named(report):
    return {row.name: row for row in report.rows}


def alike(count, prompt, output, gap=0.0, **fields):
    return Trace("alike", [TraceRequest(gap * i, prompt, output, **fields) for i in range(count)])


@pytest.mark.parametrize("slo", [None, SLO(first_token=2.0)])
def test_where_arrivals_are_the_limit_nothing_helps(slo):
    """One request in 5 s, each served within one, on a pool that holds dozens."""
    report = remedies(Setup(alike(30, 200, 50, gap=5.0), LLAMA, A100), slo=slo)
    assert report.limit.name == "arrivals"
    assert report.verdict == "None of these helps: arrivals are the limit."
    assert {row.effect for row in report.rows} == {"no difference"}
    assert report.pairs_tried == report.pairs_left == 0
    assert report.limit.offered_per_second == pytest.approx(1 / 5)
    assert report.limit.served_per_second == pytest.approx(1 / 5, rel=0.05)
    assert report.base.in_time_share == 1.0
    assert report.base.queue_share < 0.01
    assert report.base.in_memory_peak == 1
    assert "100.0% of 30 requests" in report.limit.evidence[0]
    # Twice the devices serve the same load: half of it each.
    assert named(report)["data parallel 2"].gain_per_device == pytest.approx(-0.5, abs=0.01)


#: 500 of the 4,096 tokens that are reserved for each; 8 GiB hold 4 such reservations of 2 GiB.
STARVED = Setup(
    alike(64, 400, 100), LLAMA, A100, kv_memory=8 * GIB, policy="contiguous", as_backlog=True
)


def test_where_memory_is_short_what_makes_room_helps():
    report = remedies(STARVED)
    rows = named(report)
    assert report.limit.name == "memory"
    assert report.base.in_memory_peak == 4
    assert {name for name, row in rows.items() if row.effect == "helps" and not row.pair} == {
        *FORMATS, "paging", "shorter max_length", "paging + host offload", "paging + NVMe offload",
        "tensor parallel 2", "data parallel 2",
    }  # fmt: skip
    # int8 has 2 bytes of scale on 128; int4 (64 bytes) has 4 scales of 2.
    assert rows["int8 KV"].figures.in_memory_peak == math.floor(8 / (2 * 130 / 256)) == 7
    assert rows["int4 KV"].figures.in_memory_peak == math.floor(8 / (2 * 72 / 256)) == 14
    # 500 tokens are 32 blocks of 8 MiB, so 8 GiB have room for 32 of them.
    assert rows["shorter max_length"].flags == ("--max-length 500",)
    assert rows["shorter max_length"].figures.in_memory_peak == 32
    assert rows["paging"].figures.in_memory_peak > 32  # at first no request has its 500 tokens
    gains = [rows[name].gain for name in ("int8 KV", "int4 KV", "paging")]
    assert gains == sorted(gains)
    assert rows["paging"].gain > 2
    assert report.limit.unbounded.in_memory_peak == 64
    assert rows[report.best_pair].gain > max(rows[one].gain for one in ("int4 KV", "paging")) + 0.5
    assert report.verdict.startswith(f"{report.best_pair} pays most")


def test_what_helps_by_bringing_paging_alone_is_in_no_pair():
    """Of 500 tokens 496 are the prompt, so next to nothing grows, and nothing is offloaded."""
    report = remedies(replace(STARVED, trace=alike(64, 496, 4)))
    rows = named(report)
    assert rows["paging + host offload"].effect == rows["paging"].effect == "helps"
    assert rows["paging + host offload"].gain == pytest.approx(rows["paging"].gain, abs=0.01)
    pairs = [row.name for row in report.rows if row.pair]
    assert pairs
    assert not any("offload" in name for name in pairs)


def test_rows_are_ranked_by_goodput_a_device_and_by_memory():
    report = remedies(STARVED)
    each = [row.figures.goodput_per_device for row in report.rows]
    assert each == sorted(each, reverse=True)
    assert sorted(row.memory_rank for row in report.rows) == list(range(1, len(each) + 1))
    by_memory = sorted(report.rows, key=lambda row: row.memory_rank)
    held = [row.figures.in_memory_peak / row.figures.devices for row in by_memory]
    assert held == sorted(held, reverse=True)


def test_where_prompts_begin_alike_a_prefix_cache_wins():
    """3,840 of 4,000 prompt tokens are the same text, and computing prompts is all there is."""
    trace = alike(100, 4000, 2, gap=0.05, prefix_id="system", prefix_tokens=3840)
    report = remedies(Setup(trace, LLAMA, A100), slo=SLO(first_token=1.0))
    rows = named(report)
    assert report.limit.name == "device"
    best = max((row for row in report.rows if not row.pair), key=lambda row: row.gain)
    assert best.name == "prefix cache"
    assert best.figures.in_time_share == 1.0 > 5 * report.base.in_time_share
    # All but the first find what they share, or what of it is computed when they come.
    assert 0.9 < best.figures.prefix_share <= 0.96 * 99 / 100
    assert f"{best.figures.prefix_share:.1%} of prompt tokens found in the pool" in best.measured
    assert {rows[name].effect for name in FORMATS} == {"no difference"}
    assert "prefix cache pays most" in report.verdict


def test_the_same_requests_in_time_are_no_gain_however_much_sooner_the_others_are_done():
    """64 prompts of 3,900 tokens come nearly at once, and only the first is in time.

    A prompt takes 0.17 s at least, and the SLO is 0.3 s; narrower keys and values
    make the decode steps of all shorter.
    """
    trace = alike(64, 3900, 150, gap=1e-4)
    report = remedies(Setup(trace, LLAMA, A100), slo=SLO(first_token=0.3), tries=Tries(pairs=0))
    rows = named(report)
    assert rows["int4 KV"].figures.in_time == report.base.in_time > 0
    assert rows["int4 KV"].gain > 0.1
    assert rows["int4 KV"].effect == "no difference"
    assert report.limit.name == "device"
    assert report.limit.unbounded.goodput_per_second > 1.01 * report.base.goodput_per_second
    assert rows["data parallel 2"].effect == "helps"
    assert report.verdict.startswith(
        "Nothing on the same devices helps, nor would more memory: the device's speed is the "
        "limit. tensor parallel 2 pays most: "
    )
    # Of a backlog the time for all is what counts.
    waiting = remedies(
        Setup(trace, LLAMA, A100, as_backlog=True),
        slo=SLO(first_token=0.3),
        tries=Tries(pairs=0),
    )
    assert named(waiting)["int4 KV"].effect == "helps"


def test_what_is_found_need_not_be_what_counts():
    """Half of each short prompt is found, and outputs of 1,500 tokens take no less time."""
    trace = alike(40, 64, 1500, prefix_id="system", prefix_tokens=48)
    report = remedies(Setup(trace, LLAMA, A100, max_running=8, as_backlog=True))
    row = named(report)["prefix cache"]
    assert row.figures.prefix_share > 0.5
    assert row.effect == "no difference"
    assert report.limit.name == "max-running"


def returning(seconds):
    """Long prompts, and the same once more when others have pushed them out."""
    texts = [
        TraceRequest(0.0, 3000, 4, prefix_id=f"text {i}", prefix_tokens=3000) for i in range(16)
    ]
    return Trace(
        "returning",
        [text._replace(arrival=seconds * i) for i, text in enumerate([*texts, *texts])],
    )


def test_offload_over_a_slow_link_loses_and_over_a_fast_one_wins():
    """A prompt of 3,000 tokens is 1.5 GB and takes 0.15 s to compute at least; 6 GiB hold four."""
    base = Setup(returning(0.2), LLAMA, A100, kv_memory=6 * GIB, prefix_cache=True)
    fast = remedies(base, tries=Tries(host_link=200e9, nvme_link=100e6, pairs=0))
    rows = named(fast)
    host, nvme = rows["host offload"], rows["NVMe offload"]
    assert host.figures.loaded_share > 0.4
    assert host.figures.first_token_seconds < fast.base.first_token_seconds * 0.8
    assert nvme.figures.loaded_share == 0.0
    assert nvme.effect == "worse"
    assert nvme.gain < -0.5
    assert "0.1 GB/s each way (given)" in nvme.assumption
    assert "200 GB/s each way (given)" in host.assumption
    assert any("not loaded since computing is sooner" in text for text in nvme.measured)


def test_ranks_against_replicas():
    """Requests one at a time: two ranks serve each nearly twice as fast, two replicas do not."""
    base = Setup(alike(12, 500, 100, gap=10.0), LLAMA, A100)
    alone = base.drive().latency_seconds.max
    report = remedies(base, slo=SLO(latency=alone * 0.7), tries=Tries(devices=(2, 4)))
    rows = named(report)
    assert report.base.in_time_share == 0.0
    assert [rows[f"tensor parallel {n}"].figures.in_time_share for n in (2, 4)] == [1.0, 1.0]
    assert [rows[f"data parallel {n}"].figures.in_time_share for n in (2, 4)] == [0.0, 0.0]
    two, four = (rows[f"tensor parallel {n}"].figures for n in (2, 4))
    assert (two.devices, four.devices) == (2, 4)
    assert two.goodput_per_device == two.goodput_per_second / 2 > four.goodput_per_device
    assert rows["tensor parallel 2"].gain is None
    assert len(report.compared) == 2
    assert report.compared[0].startswith("On 2 devices: tensor parallel 2 ")


def test_ranks_over_a_slow_link_lose_to_replicas():
    slow = replace(A100, peer_link=1e8, host_link=None)
    report = remedies(Setup(alike(32, 500, 100), LLAMA, slow, as_backlog=True))
    rows = named(report)
    assert rows["tensor parallel 2"].effect == "worse"
    assert rows["data parallel 2"].effect == "helps"
    assert (
        "sums counted at 0.1 GB/s (peer link of a100-80g)" in rows["tensor parallel 2"].assumption
    )
    unknown = named(remedies(Setup(alike(4, 500, 9), LLAMA, replace(slow, peer_link=None))))
    assert "sums over the ranks not counted" in unknown["tensor parallel 2"].assumption


#: What each remedy is in the words of ``replay``.
BY_HAND = {
    "fp8 KV": {"kv_format": "fp8"},
    "int8 KV": {"kv_format": "int8"},
    "int4 KV": {"kv_format": "int4"},
    "prefix cache": {"prefix_cache": True},
    "host offload": {"host_memory": 64 * GIB},
    "NVMe offload": {"nvme_memory": 1024 * GIB, "nvme_link": 6e9},
    "tensor parallel 2": {"tp": 2},
}


def test_each_row_is_the_replay_by_hand():
    trace = read_trace("mooncake-conv", limit=30, max_length=8192)
    base = Setup(trace, spec.load("llama-3.1-8b"), A100, kv_memory=4 * GIB)
    slo = SLO(first_token=1.0)
    report = remedies(base, slo=slo, tries=Tries(pairs=20))
    common = {"kv_memory": 4 * GIB, "slo": slo}
    assert report.base_result == replay(trace, "llama-3.1-8b", "a100-80g", **common)
    rows = named(report)
    assert set(BY_HAND) < set(rows)
    pairs = 0
    for name, row in rows.items():
        parts = [part for part in name.split(" + ") if part in BY_HAND]
        options = {key: value for part in parts for key, value in BY_HAND[part].items()}
        replicas = [(1, 2), (2, 2)] if "data parallel 2" in name else [(1, 1)]
        assert len(parts) + (len(replicas) == 2) == 1 + row.pair
        pairs += row.pair
        for replica, result in zip(replicas, row.results, strict=True):
            assert result == replay(
                trace, "llama-3.1-8b", "a100-80g", replica=replica, **common, **options
            )
        if len(replicas) == 1:
            (result,) = row.results
            assert row.figures.goodput_per_second == result.goodput.requests_per_second
            assert row.figures.in_time == result.goodput.requests
            assert row.figures.in_time_share == result.goodput.share
            assert row.figures.output_tokens_per_second == result.output_tokens_per_second
            assert row.figures.in_memory_peak == result.running.peak
            assert row.figures.in_memory_mean == pytest.approx(result.running.mean)
            assert row.figures.first_token_seconds == result.first_token_seconds.mean
            assert row.figures.per_token_seconds == result.per_token_seconds.mean
    assert pairs == report.pairs_tried > 1
    # The base, one with memory enough, a replay for each result of a row.
    assert report.replays == 2 + sum(len(row.results) for row in report.rows)


def test_replicas_are_summed_up_over_the_longer_of_both():
    report = remedies(Setup(alike(9, 300, 60, gap=0.2), LLAMA, A100), slo=SLO(latency=1.0))
    row = named(report)["data parallel 2"]
    first, second = row.results
    makespan = max(first.makespan_seconds, second.makespan_seconds)
    figures = row.figures
    assert (first.submitted, second.submitted, figures.submitted) == (5, 4, 9)
    assert figures.makespan_seconds == makespan
    assert figures.in_time == first.goodput.requests + second.goodput.requests
    assert figures.goodput_per_second == figures.in_time / makespan
    assert (
        figures.output_tokens_per_second == (first.output_tokens + second.output_tokens) / makespan
    )
    assert figures.in_memory_peak == first.running.peak + second.running.peak
    times = (5 * first.latency_seconds.mean, 4 * second.latency_seconds.mean)
    waits = (5 * first.queue_seconds.mean, 4 * second.queue_seconds.mean)
    assert figures.queue_share == pytest.approx(sum(waits) / sum(times))
    held = [result.running.mean * result.makespan_seconds for result in row.results]
    assert figures.in_memory_mean == pytest.approx(sum(held) / makespan)


def test_a_pool_given_in_blocks_keeps_its_bytes():
    base = replace(STARVED, policy="paged", kv_memory=None, kv_blocks=1000)
    rows = named(remedies(base))
    for name, vector in {"fp8 KV": 130, "int8 KV": 130, "int4 KV": 72}.items():
        blocks = 1000 * 256 // vector
        assert rows[name].flags == (f"--kv-blocks {blocks} --kv-format {name.split()[0]}",)
        assert rows[name].results[0].pool.blocks == blocks
    assert rows["tensor parallel 2"].results[0].pool.blocks == 2000
    assert rows["tensor parallel 2"].results[0].pool.bytes == 1000 * 8 * 2**20


def test_every_row_names_its_price_and_what_it_rests_on():
    report = remedies(replace(STARVED, policy="paged", trace=alike(64, 400, 100)))
    rows = named(report)
    for name in FORMATS:
        assert rows[name].accuracy == accuracy_of(name.split()[0])
        assert rows[name].needs
    assert all(row.accuracy and row.assumption for row in report.rows)
    assert "31.51 GB/s" in rows["host offload"].assumption
    assert "assumed" in rows["NVMe offload"].assumption
    assert rows["data parallel 2"].needs == "2 of a100-80g and a router"
    reasons = {one.name: one.reason for one in report.excluded}
    assert set(reasons) == {"paging", "shorter max_length", "prefix cache"}
    assert "names no prefixes" in reasons["prefix cache"]


def test_what_the_base_has_already_is_not_tried():
    trace = alike(8, 400, 10, prefix_id="a", prefix_tokens=64)
    base = Setup(
        trace, LLAMA, A100, kv_format="int4", prefix_cache=True,
        tiering=Tiering(GIB, nvme_memory=GIB, nvme_link=6e9),
    )  # fmt: skip
    report = remedies(base)
    assert set(named(report)) == {"tensor parallel 2", "data parallel 2"}
    assert {one.name for one in report.excluded} == {
        *FORMATS, "paging", "shorter max_length", "prefix cache", "host offload", "NVMe offload",
    }  # fmt: skip
    below = replace(base, tiering=Tiering(GIB))
    assert "NVMe offload" in named(remedies(below))


def test_what_cannot_be_is_no_error_and_says_why():
    lonely = replace(A100, host_link=None)
    report = remedies(
        Setup(alike(6, 100, 10, gap=5.0), LLAMA, lonely), tries=Tries(devices=(3, 50))
    )
    reasons = {one.name: one.reason for one in report.excluded}
    assert "--host-link" in reasons["host offload"]
    assert "do not divide by 3 ranks" in reasons["tensor parallel 3"]
    assert "gets none of 6 requests" in reasons["data parallel 50"]
    assert set(named(report)) == {*FORMATS, "NVMe offload", "data parallel 3"}
    assert report.replays == 2 + 3 + 1 + 3


def test_requests_that_are_all_too_long():
    report = remedies(Setup(alike(5, 900, 200), LLAMA, A100, max_length=1000))
    assert report.limit.name == "length"
    assert report.limit.unbounded is None
    assert report.base.in_time == 0
    assert "every request is longer than is allowed" in report.verdict
    assert report.limit.evidence[-1].startswith("5 requests can never fit: the first, 900 prompt")
    # As many are refused as in the base, which says so.
    assert not any("rejected" in text for row in report.rows for text in row.measured)


def test_arrivals_that_floats_hardly_tell_apart_have_no_rate():
    report = remedies(Setup(alike(2, 8, 2, gap=5e-324), LLAMA, A100, kv_blocks=9))
    assert report.limit.offered_per_second is None


def test_an_objective_that_no_device_meets():
    report = remedies(Setup(alike(8, 2000, 10, gap=5.0), LLAMA, A100), slo=SLO(first_token=1e-4))
    assert report.limit.name == "device"
    assert "the device's speed is the limit" in report.verdict


def test_where_memory_and_speed_are_short_both_are_said():
    """Prompts of 0.17 s each come twice as fast, to a pool for one of them: memory lets a few more
    be in time, and then the device cannot keep up."""
    trace = alike(80, 3900, 60, gap=0.09)
    base = Setup(trace, LLAMA, A100, kv_memory=3 * GIB)
    report = remedies(base, slo=SLO(first_token=2.0), tries=Tries(pairs=0))
    enough = report.limit.unbounded
    assert (report.limit.name, report.limit.beyond) == ("memory", "device")
    assert report.base.in_time_share < enough.in_time_share < 0.5
    share = f"{enough.in_time_share:.1%} meet the SLO"
    assert (
        f"With memory enough for all {share}, and the device's speed is the limit."
        in report.verdict
    )
    shares = f"{report.base.queue_share:.1%} of their time", f"{enough.queue_share:.1%} with memory"
    assert all(any(share in text for text in report.limit.evidence) for share in shares)
    # Where memory is all that is short, arrivals are the limit with enough of it.
    slow = replace(base, trace=alike(20, 3900, 60, gap=0.6))
    served = remedies(slow, slo=SLO(first_token=0.25), tries=Tries(pairs=0))
    assert (served.limit.name, served.limit.beyond) == ("memory", "arrivals")
    assert "With memory enough" not in served.verdict


def test_what_may_lose_accuracy_is_not_the_only_answer():
    """Of a backlog the narrowest format is soonest done; int8 is the best that is known."""
    report = remedies(replace(STARVED, policy="paged"), tries=Tries(pairs=0))
    rows = named(report)
    assert rows["int4 KV"].gain > rows["int8 KV"].gain * 1.1
    assert report.verdict.startswith("int4 KV pays most: ")
    assert "Of what is known to keep accuracy, int8 KV: goodput " in report.verdict


def test_of_what_serves_all_the_cheapest_is_named_first():
    """At 2 GiB a few prompts wait too long; half the bytes are enough, so int8 does as int4."""
    trace = alike(60, 1000, 100, gap=0.25)
    report = remedies(Setup(trace, LLAMA, A100, kv_memory=2 * GIB), slo=SLO(first_token=1.0))
    rows = named(report)
    assert report.base.in_time_share < 0.9
    assert rows["int4 KV"].figures.in_time_share == rows["int8 KV"].figures.in_time_share == 1.0
    assert report.verdict.startswith("int8 KV pays most")
    assert "arrivals are the limit then. As good: fp8 KV, int4 KV" in report.verdict
    share = f"{report.base.in_time_share:.1%} -> 100.0% meet the SLO"
    assert share in report.verdict
    assert report.limit.beyond == "arrivals"
    assert "known to keep accuracy" not in report.verdict


def test_progress_counts_every_replay():
    seen, ended = [], []
    report = remedies(
        STARVED,
        on_replay=lambda done, expected: seen.append((done, expected)),
        on_ended=ended.append,
    )
    # Each request once in the base, with memory enough and in each row, dealt out to its replicas.
    assert len(ended) == 64 * (2 + len(report.rows))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert all(done <= expected for done, expected in seen)
    assert seen[-1] == (report.replays, report.replays)


@pytest.mark.parametrize("after", [2, 3, 10, 12])
def test_an_interruption_leaves_what_was_replayed(after):
    def interrupt(done, _):
        if done >= after:
            raise KeyboardInterrupt

    if after == 2:  # the base and its limit
        with pytest.raises(KeyboardInterrupt):
            remedies(STARVED, on_replay=interrupt)
        return
    whole, cut = remedies(STARVED), remedies(STARVED, on_replay=interrupt)
    assert (whole.partial, cut.partial) == (False, True)
    assert cut.verdict.startswith("As far as it was replayed: ")
    assert cut.replays >= after
    assert cut.replays == 2 + sum(len(row.results) for row in cut.rows)
    rows = named(whole)
    for row in cut.rows:
        assert replace(row, memory_rank=0) == replace(rows[row.name], memory_rank=0)
    assert cut.pairs_tried + cut.pairs_left in (0, whole.pairs_tried + whole.pairs_left)


def test_pairs_are_bounded_and_make_sense():
    every = remedies(STARVED, tries=Tries(pairs=1000))
    pairs = [row for row in every.rows if row.pair]
    assert every.pairs_left == 0
    assert len(pairs) == every.pairs_tried
    for row in pairs:
        formats = [part for part in row.name.split(" + ") if part.endswith(" KV")]
        assert len(formats) <= 1
        assert not ("tensor parallel" in row.name and "data parallel" in row.name)
        assert not ("paging" in row.name and "shorter" in row.name)
    few = remedies(STARVED, tries=Tries(pairs=2))
    assert (few.pairs_tried, few.pairs_left) == (2, len(pairs) - 2)
    none = remedies(STARVED, tries=Tries(pairs=0))
    assert (none.pairs_tried, none.pairs_left, none.best_pair) == (0, len(pairs), None)


def test_a_gain_is_a_share_or_where_it_is_large_a_factor():
    written = {-0.704: "-70.4%", 0.0: "+0.0%", 1.029: "+102.9%", 8.994: "+899.4%", 17.571: "18.6x"}
    assert {gain: gain_text(gain) for gain in written} == written


@pytest.mark.parametrize(
    "options",
    [
        {"host_memory": 0}, {"nvme_memory": -1}, {"host_link": 0.0}, {"nvme_link": math.inf},
        {"devices": (1,)}, {"devices": (2, 2)}, {"devices": (10**6,)}, {"pairs": -1},
    ],
)  # fmt: skip
def test_tries_out_of_range(options):
    with pytest.raises(KvhouseError):
        Tries(**options)
