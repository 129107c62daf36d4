"""The oracle: the bytes in the tensors of a model's own cache, as transformers keeps it."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

# Names under which a forward pass takes and returns its cache.
CACHES = ("past_key_values", "cache", "cache_params", "state", "mems", "past_buckets_states")
# Tensors in a cache that count positions and hold nothing of a token.
BOOKKEEPING = {
    "_sliding_window_tensor",
    "cumulative_length",
    "indexer_cumulative_length",
    "seqlen_offset",
}
# Classes that take the whole input at every step and cut off what is cached themselves.
WHOLE_INPUT = ("CpmAntForCausalLM", "XLMWithLMHeadModel")
# Classes that never return their cache and are given one, as ``generate`` does.
GIVEN_CACHE = ("RecurrentGemmaForCausalLM", "XLMWithLMHeadModel")

Config = dict[str, Any]


def build_config(model_type: str, config: Config) -> Any:
    return CONFIG_MAPPING[model_type](**config)


def build_model(config: Any, dtype: torch.dtype) -> Any:
    """The causal LM of a config with random weights; of MusicGen, the decoder alone."""
    torch.manual_seed(0)
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    decoder = getattr(config, "decoder", None)
    if isinstance(decoder, model_class.config_class):
        return model_class._from_config(decoder, dtype=dtype).eval()
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def run(model: Any, tokens: int, decoded: int, encoder_tokens: int) -> list[Any]:
    """Prefill, then decode the last tokens one by one; what holds the cache afterwards."""
    musicgen = type(model).__name__.startswith("Musicgen")
    rows = model.config.num_codebooks if musicgen else 1  # added up to one sequence
    torch.manual_seed(1)
    ids = torch.randint(5, 60, (rows, tokens))
    takes = inspect.signature(model.forward).parameters
    name = next((cache for cache in CACHES if cache in takes), None)
    given = cache = None
    if type(model).__name__ in GIVEN_CACHE:
        given = cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    extra = other_input(model, encoder_tokens) if encoder_tokens else {}
    prompt = tokens - decoded
    for first, last in [(0, prompt), *((i, i + 1) for i in range(prompt, tokens))]:
        first = 0 if type(model).__name__ in WHOLE_INPUT else first
        cached = {name: cache} if name and cache is not None else {}
        with torch.no_grad():
            output = model(input_ids=ids[:, first:last], use_cache=True, **cached, **extra)
        extra.pop("cross_attention_states", None)  # seen once, with the prompt
        cache = given or next((c for key in CACHES if (c := output.get(key)) is not None), None)
    # RecurrentGemma keeps its states in the modules.
    modules = [tensor for m in model.modules() for tensor in vars(m).values()]
    return [cache, *(tensor for tensor in modules if isinstance(tensor, torch.Tensor))]


def other_input(model: Any, tokens: int) -> dict[str, Any]:
    """Random hidden states of another input, under the name that the model takes them."""
    config = model.config.get_text_config(decoder=True)
    width = getattr(config, "cross_attention_hidden_size", None) or config.hidden_size
    states = torch.randn(1, tokens, width, dtype=model.dtype)
    takes = inspect.signature(model.forward).parameters
    for name in ("encoder_hidden_states", "cross_attention_states"):
        if name in takes:
            return {name: states}
    return {"encoder_outputs": (states,)}


def tensors(holder: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor below an object, bookkeeping left out."""
    if isinstance(holder, torch.Tensor):
        yield holder
    elif isinstance(holder, dict):
        for value in holder.values():
            yield from tensors(value, depth + 1)
    elif isinstance(holder, list | tuple):
        for value in holder:
            yield from tensors(value, depth + 1)
    elif hasattr(holder, "__dict__") and depth < 8 and not type(holder).__name__.endswith("Config"):
        for name, value in vars(holder).items():
            if name not in BOOKKEEPING and not isinstance(value, type | torch.dtype):
                yield from tensors(value, depth + 1)


def cached_bytes(model: Any, tokens: int, decoded: int = 1, encoder_tokens: int = 0) -> int:
    """Bytes of all tensors in the cache after ``tokens`` tokens; the same memory counts once."""
    seen = {}
    for tensor in tensors(run(model, tokens, min(decoded, tokens - 1), encoder_tokens)):
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        seen[place if tensor.nbytes else id(tensor)] = tensor.nbytes
    return sum(seen.values())


@pytest.fixture(scope="session")
def oracle() -> Callable[..., int]:
    """``cached_bytes``."""
    torch.set_num_threads(1)
    return cached_bytes


@pytest.fixture(scope="session")
def own_model() -> Callable[[str, Config, str], tuple[Any, Any]]:
    """Build a config and its model in a dtype."""

    def build(model_type: str, config: Config, dtype: str) -> tuple[Any, Any]:
        built = build_config(model_type, config)
        return built, build_model(built, getattr(torch, dtype))

    return build
