"""Spares pydantic its search for plugins: in the frozen program there are no distributions that could have one.

The search is importlib.metadata's, which imports all of email.
"""

import importlib
import sys
import types

metadata = types.ModuleType("importlib.metadata")
metadata.entry_points = lambda **_: ()
sys.modules[metadata.__name__] = importlib.metadata = metadata
