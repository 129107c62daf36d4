"""OpenVINO GenAI's continuous batching for ``engine_vs_peers.py``, with its default KV format.

It reads the float16 GGUF file itself.
"""

from __future__ import annotations

import time

from engine_peer import Stamps, Times, read_job, run


def main() -> None:
    """Load, then answer batch after batch."""
    job = read_job()
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 4  # GB
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": job.threads}
    pipeline = genai.ContinuousBatchingPipeline(
        job.gguf["f16"], scheduler, "CPU", properties=properties
    )
    asked = 0

    def answer(prompts: list[list[int]], generate: int) -> tuple[float, Times]:
        nonlocal asked
        stamps = Stamps(len(prompts))
        config = genai.GenerationConfig(max_new_tokens=generate, ignore_eos=True)
        begun = time.perf_counter()
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], np.int64))
            handles.append(pipeline.add_request(asked, ids, config))
            asked += 1
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for place, handle in enumerate(handles):
                if handle.can_read():
                    come = sum(len(o.generated_ids) for o in handle.read().values())
                    stamps.grown(place, len(stamps.times[place]) + come)
        return begun, stamps.times

    run(job, genai.__version__, answer)


if __name__ == "__main__":
    main()
