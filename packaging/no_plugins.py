"""Runs before the frozen program, in which there are no distributions to look through for pydantic's plugins.

The module that would look (importlib.metadata, with all of email) takes a fourteenth of a start to import.
"""

import importlib
import sys
import types

metadata = types.ModuleType("importlib.metadata")
metadata.entry_points = lambda **_: ()
sys.modules[metadata.__name__] = importlib.metadata = metadata
