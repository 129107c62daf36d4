"""How the benchmark beside other engines counts, and what its table says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def load():
    def module(name):
        found = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        sys.modules[name] = loaded = importlib.util.module_from_spec(found)
        found.loader.exec_module(loaded)
        return loaded

    before = sys.path[:]
    sys.path.insert(0, str(BENCHMARKS))
    yield module
    sys.path[:] = before
    for name in ("engine_peer", "engine_gguf", "engine_vs_peers"):
        sys.modules.pop(name, None)


def test_only_the_time_in_which_all_decode_counts(load):
    peer = load("engine_peer")
    row = peer.Row("kv", 2, 30, 4)
    # The second request gets its first token at 16, the first its last at 19.
    times = [[13.0, 15.0, 17.0, 19.0], [16.0, 18.0, 20.0, 22.0]]
    found = peer.figures(row, 10.0, times)
    assert found["prefill"] == 2 * 30 / 6
    assert found["decode"] == 3 / 3  # at 17, 18 and 19
    assert found["first_token_seconds"] == 6.0
    one = peer.figures(peer.Row("prefill", 1, 30, 1), 10.0, [[12.0]])
    assert (one["prefill"], one["decode"]) == (15.0, None)
    with pytest.raises(SystemExit, match=r"1: \[2\] tokens came instead of 3 each"):
        peer.figures(peer.Row("1", 1, 30, 3), 0.0, [[1.0, 2.0]])


def test_tokens_that_come_together_have_one_time(load):
    stamps = load("engine_peer").Stamps(2)
    stamps.grown(0, 1)
    stamps.all_grown([3, 2])
    assert [len(each) for each in stamps.times] == [3, 2]
    assert stamps.times[0][1] == stamps.times[0][2] > stamps.times[0][0]


def test_the_table_has_medians_and_ratios(load):
    versus = load("engine_vs_peers")

    def round_of(decode, prefill):
        row = {"decode": decode, "prefill": prefill}
        return {"version": "1", "first_token_after": 2.0, "rows": {"8": row, "prefill": row}}

    rows = [
        {"name": "8", "concurrency": 8, "prompt": 128, "generate": 128},
        {"name": "prefill", "concurrency": 1, "prompt": 2048, "generate": 1},
    ]
    rounds = {
        "kvhouse": [round_of(400.0, 1000.0), round_of(420.0, 900.0), round_of(410.0, 1100.0)],
        "vllm": [round_of(205.0, 2000.0), {"error": "no"}],
        "openvino": [{"error": "no"}],
    }
    where = {"processor": "p", "threads": 2, "bandwidth": 3e10}
    lines = list(versus.tables({"date": "d", "machine": where, "rows": rows, "engines": rounds}))
    (mine,) = (line for line in lines if line.startswith("| kvhouse |"))
    assert "410.0 (400.0 to 420.0), 1.00x" in mine
    (peer,) = (line for line in lines if line.startswith("| vllm |"))
    assert "205.0 (205.0 to 205.0), 2.00x | 2,000.0 (2,000.0 to 2,000.0), 0.50x" in peer
    assert "| openvino | failed |" in "\n".join(lines)
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_weights_are_widened_and_all_else_is_kept(load, tmp_path):
    source, target = str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf")
    values = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    writer = GGUFWriter(source, "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    packed = quantize(values, GGMLQuantizationType.Q4_1)
    writer.add_tensor("m", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.add_tensor("n", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    load("engine_gguf").write(source, target, "f16")
    reader = GGUFReader(target)
    assert reader.fields["llama.block_count"].contents() == 3
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    assert by_name["m"].tensor_type == GGMLQuantizationType.F16
    exact = dequantize(packed, GGMLQuantizationType.Q4_1)
    assert np.array_equal(by_name["m"].data, exact.astype(np.float16))
    assert np.array_equal(by_name["n"].data, values[0])
