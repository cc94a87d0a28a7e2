#!/usr/bin/env bash
# Installs the clients that check_clients.py tries, in a virtual environment of their own. On demand, never in CI.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 -m venv .deps/clients/venv
.deps/clients/venv/bin/pip install --quiet --disable-pip-version-check openai==3.57.0 huggingface_hub==2.4.0
echo "now: tests/clients/check_clients.py build/release/bin/forebay"
