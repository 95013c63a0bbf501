"""The configuration, read by a process of its own that ends at once.

What reads it (pydantic, PyYAML) would keep 13 MB of a program that lives as long as the node, and is needed for a
moment.
"""

from pathlib import Path

from base.child_process import Child
from node.flags import Flags
from node.model import Settings


class Refused(Exception):
    """The configuration cannot be taken; the message says why, and what to write."""


def read(asked: Flags) -> Settings:
    """The settings of the file that is asked for, else of the first that is there of the default ones.

    For a process with one thread.  Raises Refused, OSError.
    """
    child = Child(lambda: _read(asked))
    try:
        answer = child.answer()
    except ChildProcessError as e:
        raise Refused(f"reading the configuration {e}; see the lines above") from e
    if isinstance(answer, Settings):
        return answer
    raise Refused(str(answer))


def _read(asked: Flags) -> Settings | str:
    """The settings, or why there are none."""
    from node import config  # noqa: PLC0415  # for the process that ends

    path = asked.config or next((path for path in config.DEFAULTS if path.exists()), None)
    if path is None:
        return _nowhere(config.DEFAULTS)
    try:
        return config.read(path, prefix=asked.prefix, cdi=asked.cdi)
    except config.Refused as e:
        return "; ".join(filter(None, (e.msg, e.details)))


def _nowhere(defaults: tuple[Path, ...]) -> str:
    where = ", ".join(map(str, defaults))
    return f"there is no configuration: none of {where} is there; write one (docs/user/node.md), or name it by --config"
