"""vLLM on the CPU for ``engine_vs_peers.py``, with its defaults; compiled unless ``eager``."""

from __future__ import annotations

import time

from engine_peer import Stamps, Times, read_job, run


def main() -> None:
    """Load, then answer batch after batch."""
    job = read_job()
    import vllm
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job.model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=max(4096, job.longest),
        enforce_eager=job.variant == "eager",
        enable_prefix_caching=False,
    )
    engine = llm.llm_engine
    asked = 0

    def answer(prompts: list[list[int]], generate: int) -> tuple[float, Times]:
        nonlocal asked
        stamps, first = Stamps(len(prompts)), asked
        params = SamplingParams(
            temperature=0.0, max_tokens=generate, ignore_eos=True, detokenize=False
        )
        begun = time.perf_counter()
        for prompt in prompts:
            engine.add_request(str(asked), {"prompt_token_ids": prompt}, params)
            asked += 1
        while engine.has_unfinished_requests():
            for output in engine.step():
                place = int(output.request_id.partition("-")[0]) - first
                stamps.grown(place, len(output.outputs[0].token_ids))
        return begun, stamps.times

    run(job, vllm.__version__, answer)


if __name__ == "__main__":
    main()
