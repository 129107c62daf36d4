"""llama.cpp for ``engine_vs_peers.py``, through llama-cpp-python's low-level calls.

All requests decode in one batch, as in its own batched bench; the variant is the weights' type.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

from engine_peer import Job, Row, Stamps, Times, read_job, run

_BATCH = 2048


def main() -> None:
    """Load, then answer batch after batch."""
    job = read_job()
    import llama_cpp
    import numpy as np

    silent = llama_cpp.llama_log_callback(lambda *_: None)  # which has to live as long as this
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(job.gguf[job.variant].encode(), params)
    if not model:
        raise SystemExit("llama.cpp cannot load the GGUF file")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(max(_BATCH, job.widest), 0, 1)
    contexts: dict[Row, Any] = {}

    def context_for(row: Row) -> Any:  # noqa: ANN401 - a pointer
        if row not in contexts:
            for held in contexts.values():
                llama_cpp.llama_free(held)
            contexts.clear()
            options = llama_cpp.llama_context_default_params()
            options.n_ctx = row.concurrency * (row.prompt + row.generate)
            options.n_batch = _BATCH
            options.n_seq_max = row.concurrency
            options.n_threads = options.n_threads_batch = job.threads
            contexts[row] = llama_cpp.llama_init_from_model(model, options)
        return contexts[row]

    def compute(context: Any, tokens: list[tuple[int, int, int, bool]]) -> None:  # noqa: ANN401
        batch.n_tokens = len(tokens)
        for place, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[place], batch.pos[place] = token, position
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            batch.logits[place] = wanted
        if llama_cpp.llama_decode(context, batch):
            raise SystemExit("llama.cpp could not compute a batch")

    def likeliest(context: Any, place: int) -> int:  # noqa: ANN401
        logits = llama_cpp.llama_get_logits_ith(context, place)
        return int(np.ctypeslib.as_array(logits, shape=(vocab,)).argmax())

    def answer(prompts: list[list[int]], generate: int) -> tuple[float, Times]:
        context = context_for(_row_of(job, prompts, generate))
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        stamps = Stamps(len(prompts))
        begun = time.perf_counter()
        coming = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        tokens = [0] * len(prompts)
        for start in range(0, len(coming), _BATCH):
            part = coming[start : start + _BATCH]
            compute(context, part)
            for place, (_, _, sequence, wanted) in enumerate(part):
                if wanted:
                    tokens[sequence] = likeliest(context, place)
                    stamps.grown(sequence, 1)
        for count in range(1, generate):
            at = len(prompts[0]) + count - 1
            compute(context, [(token, at, i, True) for i, token in enumerate(tokens)])
            tokens = [likeliest(context, place) for place in range(len(tokens))]
            stamps.all_grown([count + 1] * len(prompts))
        return begun, stamps.times

    run(job, llama_cpp.__version__, answer)


def _row_of(job: Job, prompts: list[list[int]], generate: int) -> Row:
    """The row whose context is to be used: the batch itself, or the row that it warms up for."""
    length = len(prompts[0])
    for row in job.rows:
        if row.concurrency == len(prompts) and row.prompt >= length and row.generate >= generate:
            return row
    return Row("", len(prompts), length, generate)


if __name__ == "__main__":
    main()
