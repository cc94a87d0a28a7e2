#!/usr/bin/env bash
# Installs the TPU compiler (libtpu, 137 MB) as .deps/tpu/libtpu.so, so that programs can be compiled for TPU topologies
# on a machine without TPUs (docs/sharding.md). On demand, never in CI. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

requirement="libtpu==0.0.52 --hash=sha256:f5e2e596eaea9357fbb5a6755a7a9007c6ab75bfde4a55191b03eff402971140"
stamp=".deps/tpu/stamp"
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$requirement" ] && [ -f .deps/tpu/libtpu.so ]; then
  echo "setup_tpu_compiler: ready"
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "$requirement" > "$work/requirements.txt"
# The wheel of one Python version, whatever the version here: only the shared library in it is used.
python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
  --python-version 3.11 --implementation cp --platform manylinux_2_31_x86_64 --dest "$work" -r "$work/requirements.txt"
mkdir -p .deps/tpu
python3 - "$work" <<'PY'
import glob, os, shutil, sys, zipfile

with zipfile.ZipFile(glob.glob(os.path.join(sys.argv[1], "libtpu-*.whl"))[0]) as archive:
    name = next(n for n in archive.namelist() if n.endswith("/libtpu.so"))
    with archive.open(name) as source, open(".deps/tpu/libtpu.so.tmp", "wb") as out:
        shutil.copyfileobj(source, out)
os.replace(".deps/tpu/libtpu.so.tmp", ".deps/tpu/libtpu.so")
PY
echo "$requirement" > "$stamp"
echo "setup_tpu_compiler: ready"
