#!/usr/bin/env bash
# Makes .deps/peers/jax, a virtual environment with JAX, and lets it write the train step that
# `forebay-bench learner` runs against ours. On demand, never in CI.
#
#   bench/peers/setup_jax.sh [ROWS LENGTH]   default: 2 512
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.deps/peers/jax
if ! "$venv/bin/python" -c 'import jax' 2>/dev/null; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    jax==0.10.2 jaxlib==0.10.2 numpy==2.2.6
fi
"$venv/bin/python" bench/peers/jax_learner.py .deps/peers/jax_learner "${1:-2}" "${2:-512}"
