"""Text adventures: rooms with small quests that tw-make has built (examples/setup.sh textworld).

    ./in_venv.sh textworld textworld/env.py [--games FOLDER] [--held-out 8] [--no-hints]
"""

from __future__ import annotations

import argparse
import glob
import os
import sys

from forebay import Message, serve
from forebay.adapters.textworld import TextWorldEnvironment

HELP = "Answer with one command."
# SmolLM2-135M tells a story of its own unless it is shown what a command is.
SHOWN = [Message("user", "Your task is to open the red box.\nYou see a red box and a key.\n"
                 f"Possible commands: drop pen, examine key, look, open red box, take key.\n{HELP}"),
         Message("assistant", "open red box"),
         Message("user", "First, pick up the lamp from the shelf.\nYou see a shelf with a lamp on it.\n"
                 f"Possible commands: examine lamp, inventory, look, take lamp from shelf.\n{HELP}"),
         Message("assistant", "take lamp from shelf")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--games", default=os.path.join(sys.prefix, "quests"), help="folder of .z8 files")
    parser.add_argument("--held-out", type=int, default=8, help="games for evaluation only")
    parser.add_argument("--no-hints", action="store_true", help="do not list the possible commands")
    options = parser.parse_args()
    games = sorted(glob.glob(os.path.join(options.games, "*.z8")))
    if not 0 < options.held_out < len(games):
        sys.exit(f"textworld: {options.games} has {len(games)} games, and --held-out = {options.held_out} of them are kept for "
                 "evaluation: build more with examples/setup.sh textworld")
    held_out, train = games[:options.held_out], games[options.held_out:]
    serve(lambda: TextWorldEnvironment(train, held_out, hints=not options.no_hints, demonstrations=SHOWN, possible_reward=0.1),
          name="textworld")


if __name__ == "__main__":
    main()
