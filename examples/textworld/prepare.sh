#!/usr/bin/env bash
# Builds the games of the example into VENV/quests: 40 rooms with a quest of one command each, some seconds a game.
set -euo pipefail
venv=$1
mkdir -p "$venv/quests"
make_quest() {
  local game="$1/quests/quest_$(printf %02d "$2").z8"
  [ -f "$game" ] || "$1/bin/tw-make" custom --world-size 1 --nb-objects 3 --quest-length 1 --seed "$2" --output "$game" --silent
}
export -f make_quest
seq 1 40 | xargs -P "$(nproc)" -I{} bash -euc 'make_quest "$0" "$1"' "$venv" {}
