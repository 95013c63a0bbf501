"""The features of attachments: everything besides the interface.

cni/transaction.py, cni/commands.py and cni/undo.py call each feature by name, because the features depend on each
other.  The rules need the addresses, and routing chooses the table for each of addressing's routes.  ADD writes sysctls
before it adds addresses, and watches the GIDs from before that.

Rejected: a table of features with the same functions, which hides this order and needs functions that do nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cni.features import claimed, expected, host_network, program, routing, rxe, steering, tuning

__all__ = ["claimed", "expected", "host_network", "program", "routing", "rxe", "steering", "tuning"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a module that few attachments need when it is first used: ``features.tuning``."""
        if name in __all__:
            return import_module(f"cni.features.{name}")
        raise AttributeError(name)
