#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while.   tools/fuzz.sh [SECONDS_EACH, default 30]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
for target in $(find build/fuzz -type f -executable -name '*_fuzz' | sort); do
  echo "fuzz: $(basename "$target") for $seconds s"
  corpus=build/fuzz/corpus/$(basename "$target")
  mkdir -p "$corpus"
  "$target" -max_total_time="$seconds" -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 "$corpus" 2>&1 |
    grep -E 'ERROR|SUMMARY|number_of_executed_units' || true
  [ "${PIPESTATUS[0]}" = 0 ]
done
echo "fuzz: no findings"
