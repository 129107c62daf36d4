#!/usr/bin/env bash
# Records what llama.cpp says of its KV caches, through llama-cpp-python, for several cache types.
#
#   benchmarks/peers/llama_cpp.sh VENV OUT
#
# VENV is a virtual environment for it, made if it is not there (its package is compiled); OUT is a
# directory for what is recorded. The Python on PATH is one that has kvhouse and both model packages.
set -euo pipefail
venv=$1 out=$2 here=$(dirname "$0")

if [ ! -d "$venv" ]; then
  python3 -m venv "$venv"
  CMAKE_BUILD_PARALLEL_LEVEL=1 "$venv/bin/python" -m pip install llama-cpp-python==0.3.36
fi
python "$here/llama_cpp.py" --python "$venv/bin/python" --out "$out"
