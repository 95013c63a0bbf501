"""Replace the module inspect for dataclasses, because it imports ast, dis and tokenize.

dataclasses uses it for a signature as the docstring of a class without one.  No code here reads docstrings.
"""

import sys
from types import ModuleType

sys.modules["inspect"] = inspect = ModuleType("inspect")
inspect.signature = lambda _: ""
import dataclasses  # noqa: E402, F401

del sys.modules["inspect"]
