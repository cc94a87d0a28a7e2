"""A game of textarena.

    ./in_venv.sh textarena textarena/env.py [--game GuessTheNumber-v0] [--players 1]

Places that the agent does not take are played by an opponent that picks a move in brackets at random.
"""

from __future__ import annotations

import argparse

from forebay import serve
from forebay.adapters.textarena import TextArenaEnvironment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--game", default="GuessTheNumber-v0", help="a name that textarena.make knows")
    parser.add_argument("--players", type=int, default=1)
    options = parser.parse_args()
    TextArenaEnvironment(options.game, players=options.players)  # a wrong name ends it here
    serve(lambda: TextArenaEnvironment(options.game, players=options.players), name=options.game)


if __name__ == "__main__":
    main()
