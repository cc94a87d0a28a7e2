"""Environments of other libraries as environments of Forebay: one module each, which needs its library installed.

gymnasium: text or discrete actions. reasoning_gym: a mix of its data sets. textarena: games against an opponent, or
alone. textworld: text adventures.
"""

from ._common import task_seed

__all__ = ["task_seed"]
