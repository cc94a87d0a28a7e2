"""FrozenLake of gymnasium in text: a walk over ice, from S to G, around holes.

    ./in_venv.sh gymnasium gymnasium/env.py [--slippery]

Each task is a map of its own. Another environment of gymnasium needs its prompt and the names of its actions.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
from forebay import Message, serve
from forebay.adapters import task_seed
from forebay.adapters.gymnasium import GymnasiumEnvironment
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

PROMPT = "You walk on a frozen lake. [ ] marks where you stand, F is ice, H is a hole, G is the goal. Reach G; do not step on H."

# How an answer looks: SmolLM2-135M would rather talk about lakes.
SHOWN = [Message("user", "G is to the right of [S].\nAnswer with one of: left, down, right, up."), Message("assistant", "right"),
         Message("user", "G is below [F].\nAnswer with one of: left, down, right, up."), Message("assistant", "down")]


class FrozenLake(GymnasiumEnvironment):
    def __init__(self, slippery: bool) -> None:
        self._slippery = slippery

    def reset(self, task: int, split: str, seed: int) -> Any:
        lake = generate_random_map(size=4, p=0.8, seed=task_seed(split, task))
        super().__init__(lambda: gymnasium.make("FrozenLake-v1", desc=lake, is_slippery=self._slippery, render_mode="ansi"),
                         prompt=PROMPT, actions=["left", "down", "right", "up"])
        return [*SHOWN, Message("user", super().reset(task, split, seed))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slippery", action="store_true", help="a step may slide to the side")
    options = parser.parse_args()
    serve(lambda: FrozenLake(options.slippery), name="frozen_lake")


if __name__ == "__main__":
    main()
