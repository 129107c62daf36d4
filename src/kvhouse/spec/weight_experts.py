"""Feed-forward parts of layers: MLPs and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable

from kvhouse.spec.config import Config
from kvhouse.spec.experts import Experts
from kvhouse.spec.weights import Form, Part, linear, mlp, on, width

#: Whether layer ``i`` has experts.
Sparse = Callable[[int], bool]

COUNTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
_SHARED_COUNTS = (
    *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
)
_SHARED_WIDTHS = (
    *("shared_expert_intermediate_size", "shared_intermediate_size"),
    *("shared_experts_intermediate_size", "moe_shared_expert_intermediate_size"),
)


def first(config: Config, names: tuple[str, ...], least: int = 1) -> int | None:
    """The value of the first of several fields that the file states, else that the class has."""
    stated = [name for name in names if config.stated.get(name) is not None]
    for name in (*stated, *names):
        value = config.maybe(name, least)
        if value is not None:
            return value
    return None


def needed(config: Config, names: tuple[str, ...]) -> int:
    """The same, where one must be there."""
    value = first(config, names)
    if value is None:
        raise config.error(names[0], "is missing")
    return value


def feed_forward(config: Config, form: Form, sparse: bool) -> Part:
    """The part of a layer that mixes channels: a mixture where it is ``sparse``, or an MLP."""
    if sparse:
        return mixture(config, form)
    return mlp(width(config, form), config.hidden, form, on(config, form.mlp_bias))


def mixture(config: Config, form: Form) -> Part:
    """Router, routed experts, and those that every token passes through."""
    hidden, experts, inner = config.hidden, expert_count(config), config.either(*_WIDTHS)
    narrow = config.maybe("routed_expert_hidden_size") or hidden
    each = mlp(inner, narrow, form, form.expert_bias)
    router = form.router(config) if callable(form.router) else form.router
    part = linear(experts, hidden) + Part(others=(router + each.others) * experts)
    if narrow != hidden:  # Kimi K3's experts work in a space of their own
        part += linear(narrow, hidden) + linear(hidden, narrow)
    return part + routed_experts(config, experts, each.matrices) + _shared(config, form, inner)


def expert_count(config: Config) -> int:
    """Routed experts in one layer."""
    return needed(config, COUNTS)


def routed_experts(config: Config, experts: int, each: int) -> Part:
    """The experts of one layer, ``each`` weights in one."""
    active = needed(config, _ACTIVE)
    if active > experts:
        raise config.error("num_experts_per_tok", f"is {active}, more than the {experts} experts")
    return Part(experts=(Experts(1, experts, active, each),))


def _shared(config: Config, form: Form, inner: int) -> Part:
    if form.shared == "count":
        shared = inner * (first(config, _SHARED_COUNTS, 0) or 0)
    elif form.shared == "one":
        shared = inner
    elif form.shared == "width":
        shared = first(config, _SHARED_WIDTHS, 0) or 0
    else:
        return Part()
    part = mlp(shared, config.hidden, form, on(config, form.mlp_bias))
    return part + linear(1, config.hidden) if form.shared_gate else part


def from_layer(*names: str, default: int = 0) -> Callable[[Config], Sparse]:
    """Experts from a layer on, the number of which one of several fields states."""

    def rule(config: Config) -> Sparse:
        listed = _listed(config)
        if listed is not None:
            return listed
        dense = first(config, names, 0)
        start = default if dense is None else dense
        every = config.maybe("moe_layer_freq") if _is_number(config, "moe_layer_freq") else None
        return lambda i: i >= start and i % (every or 1) == 0

    return rule


def everywhere(config: Config) -> Sparse:
    """Experts in every layer, but for those that a list names dense."""
    return _listed(config) or (lambda _: True)


def _is_number(config: Config, name: str) -> bool:
    return isinstance(config.stated.get(name), int)


def _listed(config: Config) -> Sparse | None:
    kinds = config.texts("mlp_layer_types")
    if not kinds and isinstance(config.stated.get("moe_layer_freq"), list):
        kinds = ["sparse" if one else "dense" for one in config.integers("moe_layer_freq") or ()]
    if not kinds:
        return None
    return lambda i: i < len(kinds) and kinds[i] != "dense"


def by_step(config: Config) -> Sparse:
    """Qwen's mixtures: every ``decoder_sparse_step``-th layer that is not listed as plain."""
    step, plain = config.maybe("decoder_sparse_step") or 1, config.integers("mlp_only_layers")
    if plain is None:
        plain = [0, 1] if config.model_type == "flint" else []
    some = first(config, COUNTS, 0) or 0
    return lambda i: i not in plain and some > 0 and (i + 1) % step == 0


def by_period(config: Config) -> Sparse:
    """Jamba: one layer in each ``expert_layer_period``, if there is more than one expert."""
    period, offset = config.size("expert_layer_period"), config.size("expert_layer_offset", 0)
    several = config.size("num_experts") > 1
    return lambda i: several and i % period == offset


def ernie(config: Config) -> Sparse:
    """ERNIE 4.5: a range of layers, of which every ``moe_layer_interval``-th."""
    step, start = config.size("moe_layer_interval"), config.size("moe_layer_start_index", 0)
    end = config.stated.get("moe_layer_end_index", -1)
    last = end if isinstance(end, int) and end >= 0 else config.layers - 1
    return lambda i: (i + 1) % step == 0 and start <= i <= last


def llama4(config: Config) -> Sparse:
    """Llama 4: the listed layers, or the last of each ``interleave_moe_layer_step``."""
    listed, step = config.integers("moe_layers"), config.size("interleave_moe_layer_step")
    return lambda i: i in listed if listed is not None else (i + 1) % step == 0
