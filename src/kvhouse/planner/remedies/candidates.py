"""Every change that there is to try, or the reason why it is none here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvhouse.core.policy import CONTIGUOUS_MAX, PAGED
from kvhouse.costs import Roofline
from kvhouse.formats import get_format
from kvhouse.planner.case import Case
from kvhouse.planner.remedies.bigger import bigger_cards
from kvhouse.planner.remedies.candidate import IDENTICAL, Candidate, Excluded, Options
from kvhouse.planner.remedies.prices import ACCURACY_OF_WEIGHTS, LATENT_INT4, accuracy_of
from kvhouse.spec.layers import FullAttention, LatentAttention, Layer
from kvhouse.units import seconds_text

#: KV heads of the model choice that grouped queries stand for; Llama 2 70B and Llama 3 have 8.
GROUPED_HEADS = 8

#: Devices that layers are shared among, where nothing else is said.
RANKS = (2, 4, 8)
#: Of two that store the same bytes the first goes first: its accuracy is known better.
_NARROW = ("int8", "fp8", "int4")
_FEWER_BYTES = "a step reads fewer bytes; widening them again is not counted"


def candidates(case: Case, options: Options) -> Iterator[Candidate | Excluded]:
    """Every remedy that there is, or the reason why it is none here."""
    yield from narrower_formats(case)
    yield from narrower_weights(case)
    yield paging(case)
    yield _sharing(case, options)
    yield _shorter(case, options)
    yield from _ranks(case)
    yield from larger_cards(case)
    yield from _grouped(case)


def narrower_formats(case: Case) -> Iterator[Candidate | Excluded]:
    """Keys and values in each narrower format, or why it is none."""
    spec, now = case.spec, get_format(case.kv_format)
    latent = any(isinstance(part, LatentAttention) for part in _parts(case))
    for name in _NARROW:
        narrow = get_format(name)
        if spec.kv_bytes(case.context, narrow) >= spec.kv_bytes(case.context, now):
            yield Excluded(f"{name} KV", f"takes no fewer bytes than {case.kv_format}")
            continue
        yield Candidate(
            f"{name} KV",
            f"store keys and values in {name} instead of {case.kv_format}, scales included",
            {"kv_format": name},
            accuracy=LATENT_INT4 if latent and name == "int4" else accuracy_of(name),
            latency=_FEWER_BYTES,
            needs=f"kernels that read {name}",
        )


def narrower_weights(case: Case) -> Iterator[Candidate]:
    """The weights in each format that takes fewer bytes."""
    now = case.spec.weight_bytes(case.weight_dtype)
    for name in _NARROW:
        if case.spec.weight_bytes(name) >= now:
            continue
        yield Candidate(
            f"{name} weights",
            f"store the matrices of the layers in {name}",
            {"weight_dtype": name},
            accuracy=ACCURACY_OF_WEIGHTS,
            latency=_FEWER_BYTES,
            needs=f"a checkpoint in {name} and kernels that read it",
            basis="estimated",
            assumption=(
                f"{IDENTICAL}; embedding table, output projection, norms and biases stay as "
                "published"
            ),
        )


def paging(case: Case) -> Candidate | Excluded:
    """Blocks as they are needed, where the pool is handed out otherwise."""
    if case.policy == PAGED:
        return Excluded("paging", "the pool is paged already")
    return Candidate(
        "paging",
        f"hand out blocks as requests grow instead of {case.policy}",
        {"policy": PAGED},
        latency=(
            "none while the pool lasts; requests that outgrow it are preempted and computed again"
        ),
        assumption=f"{IDENTICAL}; {_kept_free(case)}",
    )


def _kept_free(case: Case) -> str:
    return (
        f"paged admissions leave {case.watermark:.0%} of the pool free, so they can lose requests "
        "against a policy that reserves little too much"
    )


def _sharing(case: Case, options: Options) -> Candidate | Excluded:
    name, prompt = "prefix sharing", case.context - case.new_tokens
    tokens, measured = options.shared_tokens, options.hit_share is not None
    if options.hit_share is not None:
        tokens = int(options.hit_share * prompt)
    if tokens is None:
        return Excluded(name, "what the prompts share is not known: give shared_tokens")
    if tokens > prompt:
        return Excluded(name, f"{tokens:,} shared tokens are more than the prompt's {prompt:,}")
    if case.layout().slot_bytes:
        return Excluded(name, "layers with a state would need a copy of it at the prefix's end")
    if tokens < 1:
        return Excluded(name, "the prompts share nothing")
    return Candidate(
        name,
        f"keep {tokens:,} tokens that all prompts begin with in the pool once"
        + ("" if case.policy == PAGED else f", paged instead of {case.policy}"),
        {"policy": PAGED, "shared_tokens": tokens},
        latency=(
            f"first token sooner: {_prefill_saved(case, tokens)} less of prefill (floor); a decode "
            "step still reads the prefix for each request"
        ),
        basis="estimated" if measured else "exact",
        assumption=(
            f"{IDENTICAL}; full blocks are shared, in layers that keep every token"
            + ("; the measured hits are taken as one prefix of all requests" if measured else "")
            + ("" if case.policy == PAGED else f"; {_kept_free(case)}")
        ),
    )


def _prefill_saved(case: Case, shared: int) -> str:
    """What a prompt's floor falls by when its shared tokens are there already, as shown."""
    roofline = Roofline(case.rank(), case.layout(), case.device, case.weight_dtype)
    prompt = case.context - case.new_tokens
    rest = roofline.prefill(prompt, min(shared, prompt - 1)).seconds
    return seconds_text(roofline.prefill(prompt).seconds - rest)


def _shorter(case: Case, options: Options) -> Candidate | Excluded:
    name = "shorter max_length"
    if case.policy != CONTIGUOUS_MAX:
        return Excluded(name, f"{case.policy} reserves nothing for it; only {CONTIGUOUS_MAX} does")
    shorter = options.shorter
    if shorter is None:
        if not options.lengths:
            return Excluded(name, "no length to try: give one, or the lengths of real requests")
        ordered = sorted(options.lengths)
        shorter = max(case.context, ordered[-(-99 * len(ordered) // 100) - 1])
    if shorter >= case.max_length:
        return Excluded(name, f"{shorter:,} is no shorter than {case.max_length:,}")
    if shorter < case.context:
        return Excluded(name, f"{shorter:,} is shorter than the requests' {case.context:,} tokens")
    over = sum(length > shorter for length in options.lengths)
    refused = f", {over:,} of the {len(options.lengths):,} given" if options.lengths else ""
    return Candidate(
        name,
        f"allow {shorter:,} tokens instead of {case.max_length:,}",
        {"max_length": shorter},
        latency=f"none; longer requests are refused{refused}",
    )


def _ranks(case: Case) -> Iterator[Candidate]:
    return (tensor_parallel(case, ranks) for ranks in RANKS if ranks > case.tp)


def tensor_parallel(case: Case, ranks: int) -> Candidate:
    """Every layer shared among ``ranks`` devices, more than now."""
    device = case.device
    link = "their own link" if device.peer_link else "the host link"
    known = device.peer_link or device.host_link
    return Candidate(
        f"tensor parallel {ranks}",
        f"share every layer among {ranks} devices instead of {case.tp}",
        {"tp": ranks},
        latency=(
            f"two sums over the ranks in each layer, over {link} at its full bandwidth"
            if known
            else "two sums over the ranks in each layer, not counted: no link is known"
        ),
        needs=f"{ranks} of {device.name} and a link between them",
        basis="estimated",
        assumption=(
            f"{IDENTICAL}; each rank has an equal share of the weights and its own KV heads, at "
            "least one"
        ),
        hardware=True,
    )


def larger_cards(case: Case) -> Iterator[Candidate | Excluded]:
    """The next larger devices, or that there are none."""
    cards = bigger_cards(case)
    if not cards:
        yield Excluded("bigger card", "none in the device table fits more requests, as fast")
    for card in cards:
        yield Candidate(
            f"bigger card: {card.device.name}",
            f"{card.device.title} instead of {case.device.name}",
            {"device": card.device, "kv_memory": card.kv_memory},
            needs="other hardware",
            hardware=True,
        )


def _grouped(case: Case) -> Iterator[Candidate]:
    """Only where every head has its own keys and values, and there are more than the group's."""
    if not any(_groupable(part) for part in _parts(case)):
        return
    layers = tuple(
        replace(layer, kv_heads=GROUPED_HEADS)
        if isinstance(layer, FullAttention) and _groupable(layer)
        else layer
        for layer in case.spec.layers
    )
    yield Candidate(
        f"a model with {GROUPED_HEADS} KV heads",
        "another model, whose query heads share keys and values (GQA, arXiv 2305.13245)",
        {"spec": replace(case.spec, layers=layers)},
        accuracy="unknown: another model",
        needs="a model that was trained so",
        basis="estimated",
        assumption=f"{IDENTICAL}; weights as large as this model's",
        other_model=True,
    )


def _groupable(part: Layer) -> bool:
    return (
        isinstance(part, FullAttention)
        and part.kv_heads == part.query_heads
        and part.kv_heads > GROUPED_HEADS
        and part.kv_heads % GROUPED_HEADS == 0
    )


def _parts(case: Case) -> Iterator[Layer]:
    for layer in case.spec.layers:
        yield from layer.parts
