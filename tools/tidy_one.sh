#!/usr/bin/env bash
# clang-tidy on one source, skipped when nothing that it reads has changed since it was clean.
#   tools/tidy_one.sh BUILD_DIR SOURCE HEADERS_SUM
set -euo pipefail
build=$1 source=$2 headers=$3
checks=()
# Tests take a third of the tree and run under the sanitizers: the checks for speed say nothing of use there, and
# what is left are the faults that make a test pass that should not.
case $source in *_test.cc | *_testing.cc)
  checks=(--checks='-*,bugprone-argument-comment,bugprone-dangling-handle,bugprone-infinite-loop,bugprone-sizeof-expression,bugprone-string-constructor,bugprone-unused-raii,bugprone-use-after-move,readability-identifier-naming,clang-diagnostic-thread-safety*') ;;
esac

mkdir -p .deps/tidy
key=".deps/tidy/$(cat "$source" .clang-tidy "$0" | sha256sum | cut -d' ' -f1)-${headers:0:16}"
[ -e "$key" ] && exit 0
clang-tidy-19 -p "$build" --quiet --warnings-as-errors='*' "${checks[@]}" "$source" \
  2> >(grep -v 'warnings\? generated\|Suppressed\|Use -header-filter' >&2 || true) || {
  echo "lint: clang-tidy failed on $source" >&2
  exit 1
}
touch "$key"
