"""Write environments for Forebay in Python.

    from forebay import Environment, Step, serve

    class Echo(Environment):
        def reset(self, task, split, seed):
            return "Say hello."

        def step(self, action):
            return Step("", reward=float("hello" in action.lower()), done=True)

    if __name__ == "__main__":
        serve(Echo)

Forebay starts the file as a process and runs many episodes in it at once, each in a thread of its own, or, for an
AsyncEnvironment, all on one event loop. `python -m forebay.check FILE` plays a few episodes and says what is wrong.

forebay.rewards: reward functions. forebay.tools: tools as functions. forebay.sandbox: code that nobody trusts.
forebay.adapters: gymnasium, reasoning_gym, textarena, textworld. forebay.buffer: a client of a served buffer.
"""

from ._protocol import capture_stdio as _capture_stdio
from .environment import AsyncEnvironment, Environment, GraderError, Message, Step, grading, options, seconds_left
from .server import serve

__all__ = ["AsyncEnvironment", "Environment", "GraderError", "Message", "Step", "grading", "options", "seconds_left", "serve"]

# In a process that Forebay started, stdout is the protocol from here on: what user code (or a library it imports
# next) prints goes to stderr. Elsewhere importing this package changes nothing.
_capture_stdio(only_if_served=True)
