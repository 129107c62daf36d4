"""Write ``data/how_models_run.json``: how the engine runs each architecture's tiny model.

Run it after a change to the engine or to transformers, and look at what has changed:
``python tests/engine/how_models_run.py``.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TABLE = HERE / "data" / "how_models_run.json"
TINY = HERE.parent / "oracle" / "tiny_configs.jsonl"


def tiny_configs() -> dict[str, dict[str, Any]]:
    """A tiny config of every causal language model, in the words of a config.json."""
    rows = [json.loads(line) for line in TINY.read_text(encoding="utf-8").splitlines()]
    configs = {row["model_type"]: row["config"] for row in rows if "variant" not in row}
    for config in configs.values():
        # An indexer that selects all there is; beyond that the engine refuses requests.
        if "index_topk" in config:
            config["index_topk"] = 64
    return configs


def main() -> None:
    """Ask the gate about each."""
    import torch
    from transformers import CONFIG_MAPPING

    from kvhouse.engine.support import capability

    torch.set_num_threads(1)
    table = {}
    for model_type, config in tiny_configs().items():
        found = capability(CONFIG_MAPPING[model_type](**copy.deepcopy(config)))
        table[model_type] = {"kind": found.kind, "reason": found.reason}
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
