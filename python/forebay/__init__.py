"""Write environments for Forebay in Python.

    from forebay import Environment, Step, serve

    class Echo(Environment):
        def reset(self, task, split, seed):
            return "Say hello."

        def step(self, action):
            return Step("", reward=float("hello" in action.lower()), done=True)

    if __name__ == "__main__":
        serve(Echo)

Forebay starts the file as a process and runs many episodes in it at once, each in a thread of its own.
"""

from ._protocol import capture_stdio as _capture_stdio
from .environment import Environment, GraderError, Message, Step, grading
from .server import serve

__all__ = ["Environment", "GraderError", "Message", "Step", "grading", "serve"]

# In a process that Forebay started, stdout is the protocol from here on: what user code (or a library it imports
# next) prints goes to stderr. Elsewhere importing this package changes nothing.
_capture_stdio(only_if_served=True)
