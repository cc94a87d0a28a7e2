#!/usr/bin/env bash
# Runs a Python file with the packages that examples/setup.sh NAME installed:  in_venv.sh NAME FILE [ARGUMENTS]
set -euo pipefail
python="$(dirname "$0")/../.deps/examples/$1/bin/python"
if [ ! -x "$python" ]; then
  echo "the example $1 needs packages that are not installed: run examples/setup.sh $1" >&2
  exit 1
fi
shift
exec "$python" "$@"
