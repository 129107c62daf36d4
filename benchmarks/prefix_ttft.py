"""What a prefix hit saves: time to first token, cold and with a long shared prefix.

    python benchmarks/prefix_ttft.py [MODEL] [--shared 1500] [--own 20] [--repeats 5]

Cold and warm prompts take turns in one run, so that both see the same machine. Each cold prompt
comes with a salt of its own, so it finds nothing; each warm one finds the prefix. Prints the
medians and their ratio.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median

from kvhouse.engine import Engine, EngineConfig, SamplingParams


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--shared", type=int, default=1500, help="tokens that all prompts share")
    parser.add_argument("--own", type=int, default=20, help="tokens of each prompt's own")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    config = EngineConfig(kv_memory=2**30, prefix_cache=True, token_budget=512)
    engine = Engine.load(asked.model, config)
    chance = random.Random(0)

    def draw(count: int) -> list[int]:
        return [chance.randrange(engine.spec.vocab_size) for _ in range(count)]

    shared = draw(asked.shared)
    seconds(engine, shared + draw(asked.own), "warm")  # fills the cache, and compiles what must be
    cold, warm = [], []
    for repeat in range(asked.repeats):
        cold.append(seconds(engine, shared + draw(asked.own), f"cold {repeat}"))
        warm.append(seconds(engine, shared + draw(asked.own), "warm"))
    print(
        f"{asked.shared:,} shared and {asked.own:,} own tokens, {asked.repeats} repeats, measured"
    )
    print(f"time to first token, cold: {median(cold) * 1e3:,.0f} ms")
    print(f"time to first token, hit:  {median(warm) * 1e3:,.0f} ms")
    print(f"hit / cold: {median(warm) / median(cold):.1%}")


def seconds(engine: Engine, prompt: list[int], salt: str) -> float:
    """Seconds until a prompt's first token, by the engine's own steps."""
    began = time.perf_counter()
    engine.submit(prompt, 1, SamplingParams(ignore_eos=True), salt=salt)
    while not engine.step().tokens:
        pass
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
