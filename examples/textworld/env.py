"""Text adventures: small quests that tw-make has built (examples/setup.sh textworld).

    ./in_venv.sh textworld textworld/env.py [--games FOLDER] [--held-out 4] [--no-hints]
"""

from __future__ import annotations

import argparse
import glob
import os
import sys

from forebay import serve
from forebay.adapters.textworld import TextWorldEnvironment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--games", default=os.path.join(sys.prefix, "games"), help="folder of .z8 files")
    parser.add_argument("--held-out", type=int, default=4, help="games for evaluation only")
    parser.add_argument("--no-hints", action="store_true", help="do not list the possible commands")
    options = parser.parse_args()
    games = sorted(glob.glob(os.path.join(options.games, "*.z8")))
    if not 0 < options.held_out < len(games):
        sys.exit(f"textworld: {options.games} has {len(games)} games, and --held-out = {options.held_out} of them are kept for "
                 "evaluation: build more with examples/setup.sh textworld")
    held_out, train = games[:options.held_out], games[options.held_out:]
    serve(lambda: TextWorldEnvironment(train, held_out, hints=not options.no_hints), name="textworld")


if __name__ == "__main__":
    main()
