"""The unit tier: pure functions and processes; no root, no kernel features."""

from hypothesis import settings

# No deadline: a loaded machine is no bug.  No database: a run leaves nothing behind and repeats itself anywhere.
settings.register_profile("unit", deadline=None, database=None, derandomize=True)
settings.load_profile("unit")
