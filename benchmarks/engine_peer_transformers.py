"""transformers for ``engine_vs_peers.py``: ``generate`` in a batch, or ``continuous`` batching."""

from __future__ import annotations

import time
from typing import Any

from engine_peer import Stamps, Times, read_job, run


def main() -> None:
    """Load, then answer batch after batch."""
    job = read_job()
    import torch
    import transformers

    torch.set_num_threads(job.threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.bfloat16)
    model.eval()

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
        settings = config(generate)
        settings.eos_token_id = -1  # which is no token
        begun = time.perf_counter()
        results = model.generate_batch(
            inputs=prompts, generation_config=settings, record_timestamps=True, warmup=False
        )
        return begun, [list(result.timestamps) for result in results.values()]

    model.generation_config.eos_token_id = None
    answer = continuously if job.variant == "continuous" else in_a_batch
    run(job, transformers.__version__, answer)


if __name__ == "__main__":
    main()
