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

while IFS= read -r script; do bash -n "$script"; done < <(git ls-files '*.sh')
git ls-files -z '*.py' | xargs -0 -n 1 python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])'

# clang-tidy reads each header through the sources that include it.
mapfile -t sources < <(printf '%s\n' "${files[@]}" | grep '\.cc$' | grep -v '_fuzz\.cc$')
tools/tidy.py "$build" "${sources[@]}"
echo "lint: ${#files[@]} files clean"
