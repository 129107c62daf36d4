"""transformers for ``engine_vs_peers.py``: ``generate`` in a batch, or ``continuous`` batching."""

from __future__ import annotations

import time
from typing import Any

from engine_peer import Stamps, Times, read_job, run

_PAGE = 256


def main() -> None:
    """Load, then answer batch after batch."""
    job = read_job()
    import torch
    import transformers

    torch.set_num_threads(job.threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.bfloat16)
    model.eval()
    model.generation_config.eos_token_id = None

    def config(generate: int) -> Any:  # noqa: ANN401 - of transformers' own
        return transformers.GenerationConfig(
            max_new_tokens=generate, do_sample=False, eos_token_id=None, pad_token_id=0
        )

    def in_a_batch(prompts: list[list[int]], generate: int) -> tuple[float, Times]:
        stamps = Stamps(len(prompts))
        length = len(prompts[0])

        class Watch(transformers.StoppingCriteria):
            def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ANN401, ARG002
                stamps.all_grown([input_ids.shape[1] - length] * len(prompts))
                return torch.zeros(len(prompts), dtype=torch.bool)

        ids = torch.tensor(prompts)
        begun = time.perf_counter()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config(generate),
            stopping_criteria=transformers.StoppingCriteriaList([Watch()]),
        )
        return begun, stamps.times

    def continuously(prompts: list[list[int]], generate: int) -> tuple[float, Times]:
        begun = time.perf_counter()
        asked = manager.add_requests(prompts, max_new_tokens=generate, record_timestamps=True)
        times: dict[str, list[float]] = {}
        while len(times) < len(prompts):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                times[result.request_id] = list(result.timestamps)
            elif not manager.is_running():
                raise SystemExit("its thread ended")
        return begun, [times[request] for request in asked]

    if job.variant == "continuous":
        settings = config(1)
        settings.eos_token_id = -1  # which is no token
        # By default its cache takes nine tenths of what is free, which is no part of this.
        pages = sum(-(-job.longest // _PAGE) + 1 for _ in range(job.widest))
        manager = model.init_continuous_batching(
            generation_config=settings,
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                page_size=_PAGE, num_blocks=pages, max_batch_tokens=2048
            ),
        )
        manager.start()
        try:
            run(job, transformers.__version__, continuously)
        finally:
            manager.stop(block=True, timeout=60)
        return
    run(job, transformers.__version__, in_a_batch)


if __name__ == "__main__":
    main()
