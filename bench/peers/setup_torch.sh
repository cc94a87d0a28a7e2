#!/usr/bin/env bash
# Makes .deps/peers/torch, a virtual environment with PyTorch, in which `forebay-bench learner` runs
# bench/peers/torch_learner.py against our step. On demand, never in CI; about 6 GB on disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.deps/peers/torch
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    torch==2.8.0 numpy==2.2.6 safetensors==0.6.2 packaging==25.0
fi
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
