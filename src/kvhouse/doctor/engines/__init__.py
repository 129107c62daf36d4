"""The line formats of each engine, old and new."""

from __future__ import annotations

from kvhouse.doctor.engines.llama_cpp import LLAMA_CPP
from kvhouse.doctor.engines.llama_server import LLAMA_SERVER
from kvhouse.doctor.engines.lmcache import LMCACHE
from kvhouse.doctor.engines.others import OTHERS
from kvhouse.doctor.engines.sglang import SGLANG
from kvhouse.doctor.engines.tensorrt_llm import TENSORRT_LLM
from kvhouse.doctor.engines.tgi import TGI
from kvhouse.doctor.engines.torch_oom import TORCH
from kvhouse.doctor.engines.vllm import VLLM
from kvhouse.doctor.engines.vllm_launch import VLLM_LAUNCH
from kvhouse.doctor.engines.vllm_running import VLLM_RUNNING
from kvhouse.doctor.engines.whisper_cpp import WHISPER_CPP
from kvhouse.doctor.line import Line

#: All formats; of those with one anchor, the commonest lines first.
LINES: tuple[Line, ...] = (
    *VLLM_RUNNING,
    *LMCACHE,
    *LLAMA_SERVER,
    *VLLM,
    *VLLM_LAUNCH,
    *SGLANG,
    *LLAMA_CPP,
    *WHISPER_CPP,
    *TENSORRT_LLM,
    *TGI,
    *TORCH,
    *OTHERS,
)
