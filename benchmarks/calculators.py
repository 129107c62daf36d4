"""The calculators hf-mem and kvfit, asked in an interpreter of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

#: The versions that the reasons were written for.
PINNED = ("hf-mem==0.5.6", "kvfit==0.3.0")

#: Bytes, or why there is no number.
Answer = int | str

# hf-mem takes the decoder's part of a model with images, as its ``run`` does, and the dtype that
# its option --kv-cache-dtype bfloat16 stands for.
_ASK = """
import json, sys, warnings
from importlib.metadata import version
warnings.simplefilter("ignore")
from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size
from kvfit.architectures import estimate_cache

def hf_mem(config, tokens):
    classes = config.get("architectures") or []
    if any("ForConditionalGeneration" in name for name in classes):
        config = config.get("text_config", config)
    missing = {"hidden_size", "num_hidden_layers", "num_attention_heads"} - set(config)
    if missing:
        raise ValueError("needs " + ", ".join(sorted(missing)))
    return compute_safetensors_kv_cache_size(config, "BF16", tokens)

def kvfit(config, tokens):
    return estimate_cache(config, context_tokens=tokens, kv_bytes=2.0).total_bytes

def answer(tool, config, tokens):
    try:
        return int(tool(config, tokens))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

asked = json.load(sys.stdin)
json.dump({
    "versions": ", ".join(f"{name} {version(name)}" for name in ("hf-mem", "kvfit")),
    "answers": {
        name: {
            str(tokens): {
                "hf-mem": answer(hf_mem, config, tokens),
                "kvfit": answer(kvfit, config, tokens),
            }
            for tokens in asked["lengths"]
        }
        for name, config in asked["configs"].items()
    },
}, sys.stdout)
"""


def install(place: Path) -> str:
    """Install both into a virtual environment at ``place``; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = str(place / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PINNED], check=True)
    return python


def ask(
    python: str, configs: Mapping[str, Mapping[str, Any]], lengths: Iterable[int]
) -> tuple[str, dict[str, dict[str, dict[str, Answer]]]]:
    """What both say of every config: their versions, and answers by config, length and tool."""
    question = json.dumps({"configs": configs, "lengths": list(lengths)})
    done = subprocess.run(
        [python, "-c", _ASK], input=question, capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    return said["versions"], said["answers"]
