#!/usr/bin/env bash
# Builds the fuzz targets and runs each for a while, from the inputs in fuzz/seeds/TARGET and what it has found before.
#   tools/fuzz.sh [SECONDS_EACH, default 30]
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target fuzzers
for target in $(find build/fuzz -type f -executable -name '*_fuzz' | sort); do
  echo "fuzz: $(basename "$target") for $seconds s"
  corpus=build/fuzz/corpus/$(basename "$target")
  mkdir -p "$corpus"
  corpora=("$corpus")
  if [ -d "fuzz/seeds/$(basename "$target")" ]; then corpora+=("fuzz/seeds/$(basename "$target")"); fi
  log=build/fuzz/$(basename "$target").log
  if ! "$target" -max_total_time="$seconds" -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/$(basename "$target")-" "${corpora[@]}" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "fuzz: $(basename "$target") has a finding: the whole output is in $log"
    exit 1
  fi
  grep number_of_executed_units "$log" || true
done
echo "fuzz: no findings"
