"""Spares dataclasses the module inspect, which imports ast, dis and tokenize.

dataclasses asks it for the signature that is the docstring of a class that has none.  Nothing here reads docstrings.
"""

import sys
from types import ModuleType

sys.modules["inspect"] = inspect = ModuleType("inspect")
inspect.signature = lambda _: ""
import dataclasses  # noqa: E402, F401

del sys.modules["inspect"]
