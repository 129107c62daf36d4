"""Runs in Vidur's own virtual environment: replays requests with it, and says how long it took.

Reads a job from standard input and writes JSON to standard output. Vidur takes its times from
profiles on Hugging Face, or fits them from such. What a replay costs does not depend on what the
times are, so they are computed here, from the same bytes and FLOPs as kvhouse's, and nothing has to
be downloaded or fitted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

from vidur.config.config import (
    CacheConfig,
    ClusterConfig,
    LinearRegressionExecutionTimePredictorConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
)
from vidur.entities import Request
from vidur.execution_time_predictor.linear_regression_execution_time_predictor import (
    LinearRegressionExecutionTimePredictor,
)
from vidur.request_generator.synthetic_request_generator import SyntheticRequestGenerator
from vidur.simulator import Simulator

#: Operations of a layer whose time is part of another's here.
INCLUDED = (
    *("attn_pre_proj", "attn_post_proj", "mlp_down_proj", "mlp_act", "attn_rope"),
    *("attn_kv_cache_save", "input_layernorm", "post_attention_layernorm", "add"),
)


class Times(dict[tuple[int, ...], float]):
    """Milliseconds of an operation of one layer, worked out when they are asked for."""

    def __init__(self, milliseconds: Callable[..., float]) -> None:
        self._milliseconds = milliseconds

    def __missing__(self, key: tuple[int, ...]) -> float:
        found = self[key] = self._milliseconds(*key)
        return found


def tables(costs: dict[str, float]) -> dict[str, Times]:
    """What Vidur calls predictions, by operation."""
    bandwidth, flops = costs["bandwidth"] / 1e3, costs["flops"] / 1e3
    weights, entry = costs["layer_weight_bytes"], costs["layer_token_bytes"]
    pair = costs["layer_pair_flops"]
    found = {name: Times(lambda *_: 0.0) for name in INCLUDED}
    found["mlp_up_proj"] = Times(lambda n: max(weights / bandwidth, n * weights / flops))
    found["attn_decode"] = Times(lambda batch, kept: batch * kept * entry / bandwidth)
    found["attn_prefill"] = Times(lambda kept, count: count * (kept + count / 2) * pair / flops)
    return found


def main() -> None:
    """Run the job."""
    job = json.load(sys.stdin)
    LinearRegressionExecutionTimePredictor._load_predictions_from_hf = lambda _: tables(
        job["costs"]
    )
    # Vidur 0.0.26 leaves this one abstract, and cannot make any predictor without it.
    LinearRegressionExecutionTimePredictor.__abstractmethods__ = frozenset()
    requests = [Request(*row) for row in job["requests"]]
    SyntheticRequestGenerator.generate_requests = lambda _: requests
    folder = job["folder"]
    simulator = Simulator(
        SimulationConfig(
            cluster_config=ClusterConfig(
                replica_config=ReplicaConfig(
                    model_name="meta-llama/Llama-3-8B",
                    num_pipeline_stages=1,
                    tensor_parallel_size=1,
                    device="a100",
                    network_device="a100_dgx",
                ),
                cache_config=CacheConfig(
                    block_size=job["block_size"],
                    num_blocks=job["blocks"],
                    watermark_blocks_fraction=job["watermark"],
                ),
                replica_scheduler_config=SarathiSchedulerConfig(
                    batch_size_cap=job["max_running"], chunk_size=job["token_budget"]
                ),
            ),
            execution_time_predictor_config=LinearRegressionExecutionTimePredictorConfig(
                cache_dir=folder
            ),
            metrics_config=MetricsConfig(
                enable_chrome_trace=False, store_plots=False, output_dir=folder
            ),
        )
    )
    begun, cpu = time.perf_counter(), time.process_time()
    simulator.run()
    found = {
        "version": version("vidur"),
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
        "finished": sum(request.completed for request in requests),
    }
    print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
    main()
