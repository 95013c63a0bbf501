"""Replace importlib.metadata, in which pydantic searches plugins, because it imports all of email.

The frozen program has no distributions, so there are no plugins.
"""

import importlib
import sys
import types

metadata = types.ModuleType("importlib.metadata")
metadata.entry_points = lambda **_: ()
sys.modules[metadata.__name__] = importlib.metadata = metadata
