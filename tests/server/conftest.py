"""A server in a process of its own on SmolLM2, and servers in a thread on a tiny random model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import tokenizers
import torch
import transformers

from kvhouse.engine import AsyncEngine, Engine, EngineConfig
from kvhouse.engine.load import load_model
from kvhouse.server import Desk, ServerSettings, bind, url_of
from kvhouse.server.listen import Ending

KVHOUSE = str(Path(sys.executable).with_name("kvhouse"))
ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "KVHOUSE_API_KEY"}
BLOCK = 4
#: How often a test looks at a server before it gives up.
MOST_LOOKS = 2000
#: K and V, layers, KV heads, head_dim, bytes.
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4


@contextmanager
def started_process(*arguments, **variables):
    """``kvhouse serve`` in a process of its own, once it has said where it is."""
    with subprocess.Popen(
        [KVHOUSE, "serve", *arguments, "--json"],
        env=ENVIRONMENT | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            lines = []
            while (line := started.stdout.readline()) and line != "}\n":
                lines.append(line)
            assert line, started.communicate()
            yield started, json.loads("".join([*lines, line]))
        finally:
            started.kill()


@dataclass
class Restarted:
    """A server of SmolLM2 at the port of a server that was killed in the middle of its work.

    Attributes:
        url: Where it is.
        before: Where the other one was.
        state: Its pool before anything was asked.
    """

    url: str
    before: str
    state: dict


@pytest.fixture(scope="session")
def restarted(tiny_directory):
    """Without the package that ships SmolLM2, this fails."""
    small = (str(tiny_directory), "--name", "tiny", "--kv-memory", "4MiB", "--port", "0")
    with started_process(*small) as (first, said):
        before = said["url"]
        body = {"model": "tiny", "prompt": [1], "max_tokens": 400, "stream": True}
        with httpx2.stream("POST", f"{before}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            first.kill()
            first.wait()
    port = before.rpartition(":")[2]
    arguments = ("smollm2", "--port", port, "--kv-memory", "128MiB", "--max-length", "1024")
    with started_process(*arguments) as (second, said):
        state = httpx2.get(f"{said['url']}/kv", timeout=60).json()
        yield Restarted(said["url"], before, state)
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0
        assert "ending; requests that run have 30 s" in second.stderr.read()


@pytest.fixture(scope="session")
def smollm2_url(restarted):
    """Where a server of SmolLM2 is, in a process of its own."""
    return restarted.url


@pytest.fixture(scope="session")
def smollm2():
    """The same model in this process."""
    return Engine(load_model("smollm2"), EngineConfig(kv_memory=2**26, max_length=1024))


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory):
    """A tiny random model that has no tokenizer and never ends by itself."""
    directory = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def worded_directory(tiny_directory, tmp_path_factory):
    """The same model with a word for each token, from w0 to w96, and a chat template."""
    directory = tmp_path_factory.mktemp("worded")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{number}": number for number in range(97)}, unk_token="w0")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    )
    tokenizer.save_pretrained(directory)
    for file in tiny_directory.iterdir():
        shutil.copy(file, directory)
    return directory


@pytest.fixture
def tiny(tiny_directory, worded_directory):
    """Engines on it, with a pool counted in blocks and every invariant checked."""

    def build(blocks=64, *, worded=False, **config):
        directory = worded_directory if worded else tiny_directory
        memory = blocks * BLOCK * TOKEN_BYTES
        settings = {"kv_memory": memory, "block_size": BLOCK, "checked": True, **config}
        return Engine(load_model(directory), EngineConfig(**settings))

    return build


@dataclass
class Running:
    """A server in a thread."""

    url: str
    desk: Desk
    ending: Ending
    http: httpx2.Client
    said: list[str]

    def ask(self, prompt, max_tokens=8, **body):
        """A completion's response; greedy unless it says otherwise."""
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return self.http.post("/v1/completions", json=asked | body)

    def kv(self):
        """The pool now, its map of every block."""
        return self.http.get("/kv", params={"cells": 16384}).json()

    def until(self, condition):
        """Look at the pool until something is so of it; what it looks like then."""
        for _ in range(MOST_LOOKS):
            if condition(state := self.kv()):
                return state
            time.sleep(0.01)
        raise AssertionError(state)

    def until_free(self):
        """Look until nobody holds a block and nobody waits."""
        state = self.until(lambda state: not (state["running"] or state["waiting"]))
        ledger = state["ledger"]
        assert ledger["free"] + ledger["cached"] == ledger["total"]
        return state


@pytest.fixture
def serving():
    """Starts servers on engines, each in a thread, and ends them."""
    with ExitStack() as stack:

        def start(engine, **settings):
            desk = Desk(AsyncEngine(engine), ServerSettings("tiny", **settings))
            bound, said = bind("127.0.0.1", 0), []
            bound.listen(100)
            ending = Ending(desk, said.append)
            thread = threading.Thread(target=ending.run, args=([bound],))
            thread.start()

            def end():
                if not ending.should_exit:
                    ending.handle_exit(signal.SIGTERM, None)
                thread.join(60)
                assert not thread.is_alive()

            stack.callback(end)
            keys = settings.get("api_keys")
            headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
            url = url_of(bound)
            http = stack.enter_context(httpx2.Client(base_url=url, headers=headers, timeout=60))
            return Running(url, desk, ending, http, said)

        yield start
