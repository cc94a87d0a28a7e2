#!/usr/bin/env bash
# clang-tidy on one source, skipped when nothing that it reads has changed since it was clean.
set -euo pipefail
build=$1 source=$2
mkdir -p .deps/tidy
headers=$(git ls-files 'forebay/**/*.h' 'apps/*.h' 'bench/*.h' 'tests/**/*.h' | xargs cat | sha256sum | cut -d' ' -f1)
key=".deps/tidy/$(cat "$source" .clang-tidy "$0" | sha256sum | cut -d' ' -f1)-${headers:0:16}"
[ -e "$key" ] && exit 0
clang-tidy-19 -p "$build" --quiet --warnings-as-errors='*' "$source" 2> >(grep -v 'warnings generated\|Suppressed\|Use -header-filter' >&2 || true) || {
  echo "lint: clang-tidy failed on $source" >&2
  exit 255
}
touch "$key"
