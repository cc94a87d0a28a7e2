"""A game of textarena.

    ./in_venv.sh textarena textarena/env.py [--game GuessTheNumber-v0] [--players 1]

Places that the agent does not take are played by an opponent that picks a move in brackets at random.
"""

from __future__ import annotations

import argparse

from forebay import Message, serve
from forebay.adapters.textarena import TextArenaEnvironment

# How an answer looks in the default game: SmolLM2-135M forgets the brackets.
SHOWN = [Message("user", "Guess a number. Answer in brackets."), Message("assistant", "[7]"),
         Message("user", "The number is higher."), Message("assistant", "[12]")]


class GuessTheNumber(TextArenaEnvironment):
    def reset(self, task: int, split: str, seed: int) -> "list[Message]":
        return [*SHOWN, Message("user", super().reset(task, split, seed))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--game", default="GuessTheNumber-v0", help="a name that textarena.make knows")
    parser.add_argument("--players", type=int, default=1)
    options = parser.parse_args()
    TextArenaEnvironment(options.game, players=options.players)  # a wrong name ends it here
    game = GuessTheNumber if options.game == parser.get_default("game") else TextArenaEnvironment
    serve(lambda: game(options.game, players=options.players), name=options.game)


if __name__ == "__main__":
    main()
