#!/usr/bin/env bash
# Installs what an example needs beyond Forebay, into .deps/examples/NAME. Safe to run again.
#
#   examples/setup.sh gymnasium | harness | mcp | miniwob | openenv | reasoning_gym | textarena | textworld
set -euo pipefail
cd "$(dirname "$0")"
name=${1:-}
if [ -z "$name" ] || [ ! -f "$name/requirements.txt" ]; then
  printf 'usage: examples/setup.sh NAME, where NAME is one of:' >&2
  for file in */requirements.txt; do printf ' %s' "$(dirname "$file")" >&2; done
  printf '\n' >&2
  exit 2
fi
if [ "$name" = miniwob ] && ! command -v chromedriver >/dev/null; then
  sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
fi
venv=../.deps/examples/$name
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$name/requirements.txt"
if [ -x "$name/prepare.sh" ]; then "$name/prepare.sh" "$venv"; fi
echo "setup: $name is ready"
