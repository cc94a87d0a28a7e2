"""Web pages of MiniWoB in a real Chromium: the agent clicks and types.

    ./in_venv.sh miniwob miniwob/env.py [--pages click-test click-button enter-text] [--browsers 4]

A task is one page, filled from a seed. The agent sees what it is asked and a list of the page's elements, and writes one of
    click 5          type 7 some text          press Enter
Reward: `success`, 1 when the page says that it was solved.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any, Dict, List, Optional

from browsers import Browsers, find_chromium
from forebay import Environment, Message, Step, seconds_left, serve
from forebay.adapters import task_seed
from miniwob.action import ActionTypes

_ELEMENTS_MAX = 60
_TEXT_CHARS_MAX = 80
_SPACES = {"body", "div", "span", "p", "form", "table", "tbody", "tr", "ul", "label", "br", "hr"}  # listed only with text of their own
_HELP = "Answer with one action: click NUMBER, type NUMBER TEXT, or press Enter."

# How an answer looks: SmolLM2-135M would rather talk about the page. None of it stands on a page of MiniWoB.
_SHOWN = [Message("user", f'Click on the "Yes" button.\n3 button "No"\n6 button "Yes"\n{_HELP}'), Message("assistant", "click 6"),
          Message("user", f'Enter "Ada" into the text field.\n4 input_text\n5 button "Submit"\n{_HELP}'),
          Message("assistant", "type 4 Ada")]


class MiniWob(Environment):
    def __init__(self, browsers: Browsers, pages: List[str]) -> None:
        self._browsers = browsers
        self._pages = pages
        self._env: Any = None
        self._good = False  # what we know of the browser: not while it works on something

    def reset(self, task: int, split: str, seed: int) -> List[Message]:
        self._page = self._pages[task % len(self._pages)]
        self._env = self._browsers.take(self._page, seconds_left())
        self._observation, _ = self._env.reset(seed=task_seed(split, task))
        self._check()
        return [*_SHOWN, Message("user", f"{self._observation['utterance']}\n{self._elements()}\n{_HELP}")]

    def step(self, action: str) -> Step:
        parsed = self._parse(action)
        if parsed is None:
            return Step(f"That is no action. {_HELP}", {"success": 0.0})
        self._good = False
        self._observation, reward, done, _, _ = self._env.step(parsed)
        self._check()
        success = {"success": 1.0 if done and reward > 0 else 0.0}
        return Step(None if done else self._elements(), success, bool(done), tool="chromium")

    def close(self) -> None:
        if self._env is not None:
            self._browsers.give_back(self._page, self._env, self._good)
            self._env = None

    def _check(self) -> None:
        # miniwob reports what failed in the browser to the log only.
        if self._env.unwrapped.instance.died or not self._observation:
            raise RuntimeError("the browser failed; its reason is in the lines above")
        self._good = True

    def _parse(self, text: str) -> Optional[Dict[str, Any]]:
        match = re.search(r"\b(click|press|type)\b[ \t]*([^\n]*)", text, re.IGNORECASE)
        if match is None:
            return None
        verb, rest = match.group(1).lower(), match.group(2).strip()
        create = self._env.unwrapped.create_action
        if verb == "press":
            keys = self._env.unwrapped.action_space_config.allowed_keys
            wanted = f"<{rest.strip('<>. ')}>".lower()
            key = next((index for index, key in enumerate(keys) if key.lower() == wanted), None)
            return None if key is None else create(ActionTypes.PRESS_KEY, key=key)
        number = re.match(r"\[?(\d{1,6})\]?\s*(.*)", rest)
        if number is None or int(number.group(1)) not in {int(e["ref"]) for e in self._observation["dom_elements"]}:
            return None
        if verb == "click":
            return create(ActionTypes.CLICK_ELEMENT, ref=int(number.group(1)))
        text = "".join(c for c in number.group(2) if c.isprintable() and c.isascii())[:_TEXT_CHARS_MAX]
        return create(ActionTypes.FOCUS_ELEMENT_AND_TYPE_TEXT, ref=int(number.group(1)), text=text)

    def _elements(self) -> str:
        lines = []
        for element in self._observation["dom_elements"]:
            tag, text = str(element["tag"]).lower(), (str(element["text"]) or str(element["value"])).strip()
            if int(element["ref"]) <= 0 or (tag in _SPACES and not text):
                continue
            lines.append(f"{int(element['ref'])} {tag}" + (f' "{text[:_TEXT_CHARS_MAX]}"' if text else ""))
        return "\n".join(lines[:_ELEMENTS_MAX])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", nargs="+", default=["click-test", "click-button", "enter-text"])
    parser.add_argument("--browsers", type=int, default=4, help="at once, as many as rollout.actors; each takes about 300 MB")
    options = parser.parse_args()
    if options.browsers < 1:
        parser.error("--browsers must be 1 or more")
    try:
        find_chromium()
    except FileNotFoundError as error:
        sys.exit(f"miniwob: {error}")
    browsers = Browsers(options.pages, options.browsers)
    serve(lambda: MiniWob(browsers, options.pages), name="miniwob")


if __name__ == "__main__":
    main()
