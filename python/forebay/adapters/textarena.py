"""Games of textarena, alone or against an opponent.

    serve(lambda: TextArenaEnvironment("GuessTheNumber-v0"))
    serve(lambda: TextArenaEnvironment("TicTacToe-v0", players=2, opponent=my_function))
"""

from __future__ import annotations

import random
import re
import threading
from typing import Any, Callable, List, Optional, Tuple

from ..environment import Environment, Step
from ._common import need, task_seed

textarena = need("textarena", "textarena")

# Games seed and use Python's global generator: one after the other, so that a task is the same game each time.
_RESET = threading.Lock()
_OPPONENT_TURNS_MAX = 1000

# (what it sees, randomness) -> its action. What it sees is everything so far.
Opponent = Callable[[str, random.Random], str]


def random_move(observation: str, rng: random.Random) -> str:
    """An opponent that picks one of the moves in brackets that the game names last."""
    moves = re.findall(r"'?(\[[^\[\]\n]{1,20}\])'?", observation)
    return rng.choice(moves[-9:]) if moves else "[0]"


class TextArenaEnvironment(Environment):
    """One game. The agent sits at a place that the task chooses; rewards are those of the game, from -1 to 1.

    name, options: as textarena.make takes them. opponent: plays every other place.
    """

    def __init__(self, name: str, *, players: int = 1, opponent: Opponent = random_move, **options: Any) -> None:
        self._game = textarena.make(name, **options)
        self._players = players
        self._opponent = opponent
        self._seen = ""  # by the agent so far
        self._last = ""  # what the agent did

    def reset(self, task: int, split: str, seed: int) -> str:
        game_seed = task_seed(split, task)
        self._rng = random.Random(game_seed)
        self._seat = game_seed % self._players
        with _RESET:
            self._game.reset(num_players=self._players, seed=game_seed)
        _, text = self._until_turn(False)
        return text or "It is your turn."

    def step(self, action: str) -> Step:
        self._last = action
        done, _ = self._game.step(action)
        done, text = self._until_turn(bool(done))
        if not done:
            return Step(text or "It is your turn.", {"reward": 0.0}, tool="textarena")
        rewards, info = self._game.close()
        reward = float((rewards or {}).get(self._seat, 0.0))
        return Step(None, {"reward": reward}, done=True, tool="textarena")

    def _until_turn(self, done: bool) -> Tuple[bool, Optional[str]]:
        """Plays the opponents' moves; then what the agent has not seen yet."""
        for _ in range(_OPPONENT_TURNS_MAX):
            if done:
                return True, None
            player, observation = self._game.get_observation()
            text = observation if isinstance(observation, str) else _joined(observation)
            if player == self._seat:
                return False, self._news(text)
            done, _ = self._game.step(self._opponent(text, self._rng))
        raise RuntimeError(f"the opponents played {_OPPONENT_TURNS_MAX} moves, and it never was the agent's turn")

    def _news(self, text: str) -> str:
        """Games repeat the whole story each time, the agent's own words included; a conversation has them already."""
        new = text[len(self._seen):] if self._seen and text.startswith(self._seen) else text
        self._seen = text
        echo = re.match(r"\s*\[[^\[\]\n]{1,40}\] ", new)
        for said in (self._last, f"[{self._last}]") if echo and self._last else ():
            if new.startswith(said, echo.end()):
                return new[echo.end() + len(said):].strip()
        return new.strip()


def _joined(observation: List[Any]) -> str:
    return "\n".join(str(entry[1] if isinstance(entry, (list, tuple)) and len(entry) > 1 else entry) for entry in observation)
