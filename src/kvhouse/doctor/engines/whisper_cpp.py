"""whisper.cpp, and the first examples of ggml.

Sources: src/whisper.cpp (``whisper_init_state``, before ``whisper_model_load``); ggml's
examples/*/main.cpp.
"""

from __future__ import annotations

from kvhouse.doctor.line import line

WHISPER_CPP = (
    *(
        line(
            "whisper.cpp",
            "whisper_",
            f"kv {name}",
            rf"whisper_\w{{1,24}}: kv {name} {{1,2}}size {{0,4}}= {{0,8}}<F> MB",
            f"kv_{name}",
        )
        for name in ("self", "cross", "pad")
    ),
    *(
        line(
            "whisper.cpp",
            "whisper_",
            name,
            rf"whisper_model_load: {name} {{0,12}}= {{0,8}}<N>",
            name,
        )
        for name in ("n_text_layer", "n_text_state", "n_text_ctx", "n_audio_ctx", "n_audio_state")
    ),
    line(
        "ggml",
        "memory",
        "memory_size = ",
        r"memory_size = {0,8}<F> MB, n_mem = <N>",
        "memory_size_mib n_mem",
    ),
    line("ggml", "model_load: n_ctx", "", r"(?<!whisper_)model_load: n_ctx {0,8}= <N>", "n_ctx"),
)
