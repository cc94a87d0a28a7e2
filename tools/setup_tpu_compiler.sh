#!/usr/bin/env bash
# Installs the TPU compiler (libtpu, 137 MB) as .deps/tpu/libtpu.so, so that programs can be compiled for TPU topologies
# on a machine without TPUs (docs/sharding.md). On demand, never in CI. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/fetch_deps.py - <<'LIST'
libtpu==0.0.52 3.11 manylinux_2_31_x86_64 f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140 libtpu.so tpu/libtpu.so f86de4d04a058e6b5101f73e0824b95f27e2cec996d2b9191d9cffda75c03077
LIST
echo "setup_tpu_compiler: ready"
