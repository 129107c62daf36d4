"""``kvhouse bench``."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from kvhouse.cli import answering, bench_options, benching, engine_options, options
from kvhouse.cli.bench_options import BenchOptions
from kvhouse.cli.groups import given, grouped
from kvhouse.cli.output import require_apart
from kvhouse.cli.serve import keys_named
from kvhouse.cli.trace_options import TraceOptions
from kvhouse.errors import KvhouseError
from kvhouse.units import parse_seconds

if TYPE_CHECKING:
    from kvhouse.bench.http_target import Server

_TOKENS = 128
_REPEATS = 3
_REQUESTS = 100
_REQUESTS_PER_SENDER = 4

_OF_A_SERVER = ("--served-model", "--vocab-size")
_OF_A_BATCH = ("--repeats",)
#: What generated traffic is made of; a trace has its own.
_OF_GENERATED = ("--rate", "--requests", "--prompt", "--generate")


@grouped
def bench_command(
    target: bench_options.Target,
    *,
    concurrency: bench_options.Concurrency = None,
    prompt: bench_options.Prompt = None,
    generate: bench_options.Generate = None,
    repeats: bench_options.Repeats = None,
    trace: bench_options.Trace = None,
    rate: bench_options.Rate = None,
    requests: bench_options.Requests = None,
    taken: TraceOptions,
    objective: options.SloOptions,
    timeout: bench_options.Timeout = "10min",
    api_key: bench_options.ApiKey = None,
    served_model: bench_options.ServedModel = None,
    vocab_size: bench_options.VocabSize = None,
    dtype: engine_options.Dtype = "float32",
    asked: BenchOptions,
    seed: bench_options.Seed = 0,
    out: bench_options.Out = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure an engine or a server: one batch with its steps' parts, or a load.

    Of a model alone a batch is timed: prefill, decode, where a step's time goes, and how near its
    bytes come to this machine's bandwidth. With --trace, --rate or --requests a model, and always
    a server, is sent a load: open loop, at arrival times, or closed loop with --concurrency
    senders. Prompts are random tokens. Ctrl-C reports what was measured until then.

    Example: kvhouse bench smollm2 --concurrency 8 --dtype bfloat16

    Example: kvhouse bench http://127.0.0.1:8000 --rate 2 --prompt 200 --generate 50

    Example: kvhouse bench smollm2 --trace azure-conv-2023 --limit 20 --scale-lengths 0.1
    """
    at_server = target.partition("://")[0].lower() in ("http", "https")
    as_load = at_server or trace is not None or rate is not None or requests is not None
    slo = objective.slo()
    own = [*given(asked), *(["--dtype"] if dtype != "float32" else [])]
    others = {
        "--repeats": repeats,
        "--served-model": served_model,
        "--vocab-size": vocab_size,
        "--trace": trace,
        "--rate": rate,
        "--requests": requests,
        "--prompt": prompt,
        "--generate": generate,
    }
    _refuse_misplaced(
        [name for name, value in others.items() if value is not None],
        own,
        given(taken),
        given(objective),
        at_server=at_server,
        as_load=as_load,
    )
    outs = _outs(out, (trace, target), as_load=as_load, as_json=as_json)
    lengths = (_TOKENS if prompt is None else prompt, _TOKENS if generate is None else generate)

    def load() -> benching.Load:
        source = trace
        if source is None:
            source = _generated(rate, requests, concurrency, lengths, seed)
        traffic = taken.read(source, as_json=as_json)
        return benching.Load(traffic, concurrency, parse_seconds(timeout), seed, slo, outs)

    if at_server:
        server = _server(target, served_model, api_key, vocab_size)
        load().at(server)
        return
    answering.require(target)
    if as_load:
        config = answering.feasible_config(target, asked.config(dtype), dtype)
        load().here(target, config, dtype)
    else:
        times = _REPEATS if repeats is None else repeats
        _time_batch(target, asked, dtype, concurrency, lengths, times, seed, outs)


def _refuse_misplaced(
    there: Sequence[str],
    engine: Sequence[str],
    part: Sequence[str],
    objective: Sequence[str],
    *,
    at_server: bool,
    as_load: bool,
) -> None:
    """Refuse options that are given and would do nothing.

    Args:
        there: Options that are given, but for those that follow.
        engine: Those of an engine in this process.
        part: Those that choose from a trace.
        objective: Those of a load's objective.
        at_server: Whether a server is asked.
        as_load: Whether a load is sent, and not one batch timed.

    Raises:
        KvhouseError: There is one.
    """
    if part and "--trace" not in there:
        raise KvhouseError("--limit, --scale-lengths and all that choose from a trace need --trace")
    if at_server:
        _refuse(engine, "is for a model in this process; a server has its own")
    else:
        _refuse(_among(there, _OF_A_SERVER), "goes with a server's address")
    if as_load:
        _refuse(_among(there, _OF_A_BATCH), "goes with a batch; a load is sent once")
    else:
        of_a_load = _among(engine, bench_options.OF_A_LOAD)
        _refuse([*of_a_load, *objective], "goes with a load: add --trace, --rate or --requests")
    if "--trace" in there:
        _refuse(_among(there, _OF_GENERATED), "has no say in a trace")


def _refuse(names: Sequence[str], why: str) -> None:
    """Refuse the first of some options.

    Raises:
        KvhouseError: There is one.
    """
    if names:
        raise KvhouseError(f"{names[0]} {why}")


def _among(names: Iterable[str], those: Container[str]) -> list[str]:
    """The names that are among those."""
    return [name for name in names if name in those]


def _outs(
    files: list[str] | None, read: tuple[str | None, ...], *, as_load: bool, as_json: bool
) -> benching.Outs:
    """The files to write, once it is clear that they can be.

    Raises:
        KvhouseError: One has no name for what it is to hold, or two are the same.
    """
    from kvhouse.bench.store import kind_of

    names = tuple(files or ())
    for name in names:
        require_apart({"--out": name}, read)
        if kind_of(name) == "parquet" and not as_load:
            raise KvhouseError("--out FILE.parquet holds the requests of a load; a batch has none")
    if len(set(names)) < len(names):
        raise KvhouseError("--out names one file twice")
    return benching.Outs(names, as_json)


def _server(
    address: str, served_model: str | None, api_key: str | None, vocab_size: int | None
) -> Server:
    """The server that is asked.

    Raises:
        KvhouseError: What asks it is not installed.
    """
    from kvhouse.bench.http_target import DEFAULT_VOCAB, Server, require_httpx2

    require_httpx2()
    vocab = DEFAULT_VOCAB if vocab_size is None else vocab_size
    key = next(iter(keys_named()), None) if api_key is None else api_key
    return Server(address, served_model, key, vocab)


def _time_batch(
    model: str,
    asked: BenchOptions,
    dtype: str,
    concurrency: int | None,
    lengths: tuple[int, int],
    repeats: int,
    seed: int,
    outs: benching.Outs,
) -> None:
    """Time one batch, in a pool that holds exactly it.

    Raises:
        KvhouseError: The engine or this machine cannot do it.
    """
    from kvhouse.bench.row import Batch

    batch = Batch(1 if concurrency is None else concurrency, *lengths)
    config = answering.feasible_config(model, asked.config(dtype), dtype, batch=batch)
    benching.time_batch(model, config, dtype, batch, repeats, seed, outs)


def _generated(
    rate: float | None,
    requests: int | None,
    concurrency: int | None,
    lengths: tuple[int, int],
    seed: int,
) -> str:
    """Traffic of one length: a Poisson process, or all of it for senders to take.

    Raises:
        KvhouseError: Neither or both of ``--rate`` and ``--concurrency`` are given.
    """
    prompt, output = lengths
    shape = f"prompt={prompt},output={output},seed={seed}"
    if rate is not None and concurrency is not None:
        raise KvhouseError("--rate makes an open loop and --concurrency a closed one: give one")
    if rate is not None:
        count = _REQUESTS if requests is None else requests
        return f"poisson:rate={rate!r},requests={count},{shape}"
    if concurrency is None:
        raise KvhouseError("a load needs --trace, --rate or --concurrency")
    count = _REQUESTS_PER_SENDER * max(1, concurrency) if requests is None else requests
    return f"backlog:requests={count},{shape}"
