#!/usr/bin/env bash
# Builds the games of the example into VENV/games: 24 small quests, a few seconds each.
set -euo pipefail
venv=$1
mkdir -p "$venv/games"
for seed in $(seq 1 24); do
  game="$venv/games/quest_$(printf %02d "$seed").z8"
  [ -f "$game" ] && continue
  "$venv/bin/tw-make" custom --world-size 2 --nb-objects 4 --quest-length 2 --seed "$seed" --output "$game" --silent
done
