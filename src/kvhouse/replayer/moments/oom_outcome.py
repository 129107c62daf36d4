"""A traffic that runs out of memory while memory is free, and what is said of its refusal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvhouse import spec
from kvhouse.core.ledger import Ledger
from kvhouse.core.policy import CONTIGUOUS_POW2
from kvhouse.core.refusal import Refusal
from kvhouse.layout import KVLayout
from kvhouse.replayer.trace_request import TraceRequest
from kvhouse.replayer.traces import read_trace

#: What makes free memory useless, in the words of the chapter.
RESERVATION, FRAGMENTATION, NO_SHARING = "reservation", "fragmentation", "no sharing"


@dataclass(frozen=True, slots=True)
class OomSetting:
    """A chatbot of the years before paging, whose answers reserve the next power of two.

    Attributes:
        model: Whose keys and values.
        kv_format: How they are stored.
        kv_memory: The pool, in bytes.
        max_length: Longest request allowed, in tokens.
        policy: How memory is handed out.
        system_tokens: Prompt tokens that all requests begin with.
        traffic: What follows them, and the answers, as a generator describes them.
    """

    model: str = "llama-2-7b"
    kv_format: str = "fp16"
    kv_memory: int = 24 * 2**30
    max_length: int = 4096
    policy: str = CONTIGUOUS_POW2
    system_tokens: int = 512
    traffic: str = "backlog:prompt=lognormal(500,0.8),output=lognormal(200,0.8),requests=300,seed=3"

    @property
    def layout(self) -> KVLayout:
        """How keys and values lie in blocks."""
        return KVLayout.of(spec.load(self.model), self.kv_format)

    def requests(self) -> list[TraceRequest]:
        """The requests, each with the system prompt in front."""
        system = self.system_tokens
        trace = read_trace(self.traffic, max_length=self.max_length - system)
        return [
            request._replace(
                prompt_tokens=request.prompt_tokens + system,
                prefix_id="system",
                prefix_tokens=system,
            )
            for request in trace.requests
        ]


@dataclass(frozen=True, slots=True)
class Cause:
    """One place to look at.

    Attributes:
        name: ``reservation``, ``fragmentation`` or ``no sharing``.
        size: Bytes that it keeps from the request that was refused.
    """

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Otherwise:
    """The same requests, at the same moment, in the same pool, handed out in another way.

    Attributes:
        policy: The placement policy.
        prefix_cache: Whether the system prompt is kept once.
        held_bytes: What those that were in hold.
        admitted: Whether the request that was refused gets in.
        more: How many of those behind it get in as well.
    """

    policy: str
    prefix_cache: bool
    held_bytes: int
    admitted: bool
    more: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What ``kvhouse doctor`` says of the same figures in the words of PyTorch's allocator."""

    line: str
    title: str
    reason: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OomOutcome:
    """A refusal, where the memory was, and what would have let the request in.

    Attributes:
        setting: What was served.
        step: The step that refused it: of all, the one with the most memory free.
        refused_steps: Steps of the whole traffic that refused a request although enough was free.
        steps: Steps of the whole traffic.
        refused_requests: Requests that were refused so at least once.
        requests: Requests of the whole traffic.
        running: Requests that held memory.
        refusal: The request that got none, in blocks.
        block_bytes: Bytes of a block.
        free_runs: Lengths of the free runs in blocks, the longest first.
        ledger: Every byte of the pool, in classes.
        copies: Times that the system prompt lies in the pool.
        causes: Where to look, what keeps most first.
        otherwise: The same in pages, and in pages with shared prefixes.
        advice: What the doctor says.
    """

    setting: OomSetting
    step: int
    refused_steps: int
    steps: int
    refused_requests: int
    requests: int
    running: int
    refusal: Refusal
    block_bytes: int
    free_runs: tuple[int, ...]
    ledger: Ledger
    copies: int
    causes: tuple[Cause, ...]
    otherwise: tuple[Otherwise, ...]
    advice: Advice

    def to_dict(self) -> dict[str, Any]:
        """Plain values; docs/json.md describes the keys."""
        return asdict(self)
