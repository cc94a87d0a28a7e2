#!/usr/bin/env bash
# Runs an example from nothing: installs what it needs, trains, and says what its agent did.
#
#   examples/run.sh NAME [options of forebay train]        NAME: calculator, textworld, ... (README.md lists them)
#
# The run is in runs/NAME, or where RUN says; one that is there is replaced. FOREBAY is the program (build/release/bin/forebay).
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-}
if [ -z "$name" ] || [ ! -f "examples/$name.toml" ]; then
  printf 'usage: examples/run.sh NAME [options of forebay train], where NAME is one of:' >&2
  for file in examples/*.toml; do printf ' %s' "$(basename "$file" .toml)" >&2; done
  printf '\n' >&2
  exit 2
fi
shift
forebay=${FOREBAY:-build/release/bin/forebay}
if [ ! -x "$forebay" ]; then
  echo "examples/run.sh: $forebay is not there: build it with \`make program\`, or name it in FOREBAY" >&2
  exit 3
fi
if [ -f "examples/$name/requirements.txt" ] && [ "$name" != harness ]; then examples/setup.sh "$name"; fi

server=""
stop_server() { if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; }
trap stop_server EXIT
listens() { (exec 3<>/dev/tcp/127.0.0.1/8010) 2>/dev/null; }
if [ "$name" = openenv ] && listens; then
  echo "examples/run.sh: plays on the server that listens on 127.0.0.1:8010"
elif [ "$name" = openenv ]; then
  examples/in_venv.sh openenv examples/openenv/server.py &
  server=$!
  for _ in $(seq 180); do  # it imports for some seconds
    if listens; then break; fi
    kill -0 "$server" 2>/dev/null || { echo "examples/run.sh: the OpenEnv server ended" >&2; exit 5; }
    sleep 1
  done
fi

run=${RUN:-runs/$name}
before=$(mktemp)
trap 'rm -f "$before"; stop_server' EXIT
trap : INT  # ours goes on when Ctrl-C ends the run, which may be in time to look at
code=0
"$forebay" train "examples/$name.toml" --run "$run" --overwrite "$@" || code=$?
trap - INT

# Not of an older run that is still there because this one never began.
begun() { [ "$run/config.toml" -nt "$before" ]; }
if { [ $code = 0 ] || [ $code = 130 ]; } && begun; then
  table=$("$forebay" audit "$run" | sed -n '/^seconds of a step/,/^$/p')
  if [ "$(wc -l <<< "$table")" -gt 1 ]; then
    printf '\nwho answered the agent, in all episodes\n%s\n\n' "$table"
  else
    echo "the agent was not answered once"
  fi
fi
if [ $code = 0 ]; then
  echo "report                $run/report.json; each step: $run/metrics.jsonl"
elif [ $code = 130 ] && begun; then
  echo "where its time went   $forebay audit $run"
  if [ -n "$server" ]; then echo "first, elsewhere      examples/in_venv.sh openenv examples/openenv/server.py"; fi
  echo "go on with it         $forebay train --resume $run"
elif [ $code = 130 ]; then
  echo "the run had not begun: nothing to go on with; run examples/run.sh $name again"
fi
exit $code
