#!/usr/bin/env bash
# Lint: include rules of the rooms, formatting, clang-tidy (with clang's thread-safety analysis).
#   tools/lint.sh BUILD_DIR [FILE...]   default: every C++ file that git knows
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/lint.sh BUILD_DIR [FILE...]}
shift
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files '*.cc' '*.h'); fi

python3 tools/check_rooms.py
clang-format-19 --dry-run --Werror "${files[@]}"

# clang-tidy reads each header through the sources that include it. A source whose content (and whose includes'
# content) did not change since a clean run is skipped: .deps/tidy/ holds the keys.
mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep '\.cc$' | grep -v '_fuzz\.cc$')
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 1 tools/tidy_one.sh "$build"
echo "lint: ${#files[@]} files clean"
