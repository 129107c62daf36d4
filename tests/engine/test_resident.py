"""The process takes the weights, the pool and a constant, and no more however long it runs."""

from __future__ import annotations

import json
import subprocess
import sys

LOAD = """
import json, resource, sys
from pathlib import Path
from kvhouse.engine import Engine, EngineConfig, SamplingParams

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

import torch, transformers
from transformers import AutoModelForCausalLM, LlamaForCausalLM
before = resident()
engine = Engine.load("smollm2", EngineConfig(kv_memory=int(sys.argv[1])))
engine.generate(["Once upon a time"], 4)
weights = sum(p.numel() * p.element_size() for p in engine.executor.adapter.model.parameters())
engine.kv.write_block(0, engine.kv.read_block(0))
print(json.dumps([resident() - before, weights, engine.kv.nbytes]))
"""

RUN = """
import gc, json, resource, sys
from pathlib import Path
from kvhouse.engine import Engine, EngineConfig, SamplingParams

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

def objects():
    gc.collect()
    return len(gc.get_objects())

import torch
torch.set_num_threads(1)
config = EngineConfig(kv_memory=2**20, block_size=4, prefix_cache=sys.argv[2] == "shared")
engine = Engine.load(sys.argv[1], config)
sampling = SamplingParams(ignore_eos=True)

def serve(rounds, first):
    for number in range(first, first + rounds):
        prompts = [[(number * 7 + i) % 97, (number + i) % 97, 3, 4, 5] for i in range(16)]
        engine.generate(prompts, 60, sampling)

serve(3, 0)
before = resident(), objects()
serve(8, 3)
print(json.dumps([*before, resident(), objects()]))
"""


def ask(script: str, *arguments: str) -> list[int]:
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    numbers: list[int] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def test_a_loaded_engine_takes_its_weights_its_pool_and_a_constant():
    constant = 200 * 2**20  # the tokenizer, work space and what torch sets up at its first step
    ask(LOAD, str(2**20))  # whoever is first compiles the kernels, which takes memory of its own
    for memory in (2**20, 2**28):
        taken, weights, pool = ask(LOAD, str(memory))
        assert memory - pool < 2 * 16 * 46080  # whole blocks of 16 tokens
        # The pool's pages are there once they are written, so that a large one may be missing.
        assert weights < taken < weights + pool + constant


def test_a_long_run_does_not_grow(tiny_directory):
    """7,680 tokens of 128 requests, after as many as fill every cache; no object of them stays."""
    for cache in ("plain", "shared"):
        before, objects, after, then = ask(RUN, str(tiny_directory("llama-gqa")), cache)
        assert after - before < 4 * 2**20
        assert then - objects < 100
