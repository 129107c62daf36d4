"""From traffic to the batch that it makes, and whether the pool has room for it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from kvhouse.core.policy import DEFAULT_TOKEN_BUDGET, DEFAULT_WATERMARK, PAGED, POLICIES, Placement
from kvhouse.costs import Roofline
from kvhouse.errors import KvhouseError
from kvhouse.planner.concurrency import requests_that_fit
from kvhouse.planner.traffic.sample import Percentiles, Traffic
from kvhouse.planner.traffic.stay import MOST_BATCH, Lengths, Stay

ASSUMPTIONS = (
    "requests arrive at random, independently of each other (Poisson)",
    "times are roofline floors divided by the efficiency; nobody waits for memory or for a prefill",
    "prefill and decode take turns on the device",
    "the number of requests varies as under processor sharing (Cohen 1979), which is the Poisson "
    "distribution of M/G/infinity where a step does not grow with its batch",
    "requests are counted as alike, each of the mean length over the stays",
)

#: What is added where a device has bandwidth but no FLOP/s.
WITHOUT_COMPUTE = "the device's FLOP/s are not known, so that bandwidth alone sets every time"


@dataclass(frozen=True, slots=True)
class PolicyLoad:
    """What the traffic is to a pool under one placement policy.

    Attributes:
        policy: One of ``core.policy.POLICIES``.
        requests: Requests of the traffic's mean lengths that fit at once.
        fits_mean: Whether the mean batch does; if not, the queue grows without end.
        fits_p99: Whether the batch does for 99 % of the time.
        use: Mean batch over ``requests``; None where none fits or the device is overloaded.
        largest_rate: Requests per second up to which the mean batch fits.
        largest_rate_p99: Requests per second up to which the batch fits for 99 % of the time.
    """

    policy: str
    requests: int
    fits_mean: bool
    fits_p99: bool
    use: float | None
    largest_rate: float
    largest_rate_p99: float


@dataclass(frozen=True, slots=True)
class Load:
    """The batch that a traffic makes; all times and what follows from them are modelled.

    Attributes:
        rate: Requests per second.
        basis: Whether rate and lengths were given or measured.
        prompts: Tokens of the prompts.
        outputs: Tokens of the outputs.
        efficiency: Share of the roofline that the engine is taken to reach; 1 is the floor.
        prefill_seconds: Mean time of a prefill, alone on the device.
        prefill_share: Share of the device's time that prefills take.
        decode_context: Tokens that a request has in the pool in a decode step, the mean.
        token_rate: Output tokens per second that the traffic asks for.
        ceiling: Output tokens per second that decode can give beside these prefills, at any batch;
            0 where they leave it no time.
        utilisation: Share of what the device can do at any batch; 1 and more is overloaded.
        overloaded: Why no batch settles; empty where one does. Then the next seven are None.
        step_seconds: Time of a decode step at the batch that a request meets.
        stay_seconds: Time that a request is in the system.
        mean_batch: Requests in the system: ``rate x stay_seconds``.
        p99_batch: Requests that are not exceeded for 99 % of the time; also None past
            65,536 requests.
        held_tokens: Tokens that a request holds, the mean over its stay.
        kv_bytes_mean: Bytes that ``mean_batch`` paged requests hold.
        kv_bytes_p99: Bytes that ``p99_batch`` of them hold.
        policies: One for each placement policy.
        assumptions: What all this rests on.
    """

    rate: float
    basis: str
    prompts: Percentiles
    outputs: Percentiles
    efficiency: float
    prefill_seconds: float
    prefill_share: float
    decode_context: int
    token_rate: float
    ceiling: float
    utilisation: float
    overloaded: str
    step_seconds: float | None
    stay_seconds: float | None
    mean_batch: float | None
    p99_batch: int | None
    held_tokens: float | None
    kv_bytes_mean: int | None
    kv_bytes_p99: int | None
    policies: tuple[PolicyLoad, ...]
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same keys, as plain values."""
        return asdict(self)


def load(
    traffic: Traffic,
    roofline: Roofline,
    kv_memory: int,
    *,
    max_length: int,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    watermark: float = DEFAULT_WATERMARK,
    efficiency: float = 1.0,
) -> Load:
    """Find the batch that a traffic makes (Little's law) and whether it fits.

    Args:
        traffic: Rate and lengths.
        roofline: The model, laid out, on its device.
        kv_memory: Bytes for keys and values; 0 for none.
        max_length: Longest request allowed.
        token_budget: The most tokens that one step computes for a request.
        watermark: Share of the pool that paged admissions keep free.
        efficiency: Share of the roofline that the engine reaches, in [1e-6, 1].

    Raises:
        KvhouseError: An option is out of range, or requests are longer than allowed.
    """
    longest = traffic.totals.max
    if longest > max_length:
        raise KvhouseError(
            f"the traffic's longest request has {longest:,} tokens, more than max_length "
            f"{max_length:,}: allow longer ones or cut the traffic"
        )
    stay = Stay(traffic, roofline, efficiency)
    pool = _Pool(roofline, kv_memory, max_length, token_budget, watermark)
    rate, batch = traffic.rate, stay.mean_batch(traffic.rate)
    p99 = None if batch is None else stay.quantile(rate, 0.99)
    settled = None if batch is None else stay.lengths(rate, batch)
    held = 0 if settled is None else pool.held_bytes(settled)
    share = rate * stay.prefill_seconds
    return Load(
        rate=rate,
        basis=traffic.basis,
        prompts=traffic.prompts,
        outputs=traffic.outputs,
        efficiency=efficiency,
        prefill_seconds=stay.prefill_seconds,
        prefill_share=share,
        decode_context=stay.decode_context,
        token_rate=rate * traffic.outputs.mean,
        ceiling=max(0.0, 1 - share) * stay.ceiling,
        utilisation=rate * stay.work,
        overloaded=_overloaded(stay, rate) if batch is None else "",
        step_seconds=None if batch is None else stay.step(1 + batch),
        stay_seconds=None if batch is None else stay.seconds(rate, 1 + batch),
        mean_batch=batch,
        p99_batch=p99,
        held_tokens=None if settled is None else settled.held,
        kv_bytes_mean=None if batch is None else round(batch * held),
        kv_bytes_p99=None if p99 is None else p99 * held,
        policies=tuple(_policy(policy, stay, pool, rate, batch, p99) for policy in POLICIES),
        assumptions=ASSUMPTIONS if roofline.flop_rate else (*ASSUMPTIONS, WITHOUT_COMPUTE),
    )


def _overloaded(stay: Stay, rate: float) -> str:
    """Why there is no batch at which as much leaves as comes."""
    if rate * stay.work < 1:
        return f"overloaded: it takes a mean batch of more than {MOST_BATCH:,} requests"
    share = rate * stay.prefill_seconds
    if share >= 1:
        return f"overloaded: prefills alone need {share:.1f} times the device's time"
    return (
        f"overloaded: {rate * stay.decode_steps:,.0f} tokens/s to decode, where the ceiling beside "
        f"these prefills is {(1 - share) * stay.ceiling:,.0f} at any batch"
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    """The memory that the traffic meets."""

    roofline: Roofline
    kv_memory: int
    max_length: int
    token_budget: int
    watermark: float

    def held_bytes(self, lengths: Lengths) -> int:
        """Bytes that a paged request holds."""
        return self.roofline.layout.held_bytes(math.ceil(lengths.held), self.token_budget)

    def requests(self, policy: str, lengths: Lengths) -> int:
        """Requests that fit: paged ones by what they hold, contiguous ones by what they reserve."""
        layout = self.roofline.layout
        placement = Placement(policy, layout, self.max_length, self.token_budget)
        output = math.ceil(lengths.output)
        tokens = math.ceil(lengths.prompt) + output
        if policy == PAGED:
            tokens, output = math.ceil(lengths.held), 1
        tokens = min(tokens, self.max_length)
        size = layout.pool_in(self.kv_memory, tokens, self.token_budget)
        return requests_that_fit(placement, size, tokens, min(output, tokens), self.watermark)


def _policy(
    policy: str, stay: Stay, pool: _Pool, rate: float, batch: float | None, p99: int | None
) -> PolicyLoad:
    def room(at: float, met: float | None) -> int:
        return pool.requests(policy, stay.lengths(at, met))

    def mean_fits(at: float) -> bool:
        met = stay.mean_batch(at)
        return met is not None and met <= room(at, met)

    def p99_fits(at: float) -> bool:
        met, most = stay.mean_batch(at), stay.quantile(at, 0.99)
        return met is not None and most is not None and most <= room(at, met)

    requests = room(rate, batch)
    return PolicyLoad(
        policy=policy,
        requests=requests,
        fits_mean=batch is not None and batch <= requests,
        fits_p99=p99 is not None and p99 <= requests,
        use=batch / requests if requests and batch is not None else None,
        largest_rate=stay.largest_rate(mean_fits),
        largest_rate_p99=stay.largest_rate(p99_fits),
    )
