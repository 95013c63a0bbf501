"""The configuration, read by a process of its own that ends at once.

What reads it (pydantic, PyYAML) would keep 13 MB of a program that lives as long as the node, and is needed for a
moment.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from node.flags import Flags
from node.model import Settings


class Refused(Exception):
    """The configuration cannot be taken; the message says why, and what to write."""


def read(asked: Flags) -> Settings:
    """The settings of the file that is asked for, else of the first that is there of the default ones.

    For a process with one thread.  Raises Refused, OSError.
    """
    answer = _elsewhere(lambda: _read(asked))
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
    return f"there is no configuration: none of {where} is there; write one (docs/node.md), or name it by --config"


def _elsewhere(work: Callable[[], object]) -> Any:
    """What the work returns, done by a child process.  Raises OSError."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if not child:
        _answer(writer, work)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status or not data:
        return f"reading the configuration ended with status {os.waitstatus_to_exitcode(status)}; see the lines above"
    return pickle.loads(data)  # noqa: S301  # of our own child


def _answer(writer: int, work: Callable[[], object]) -> NoReturn:
    """Write what the work returns, and end this process."""
    status = 1
    try:
        data = pickle.dumps(work())
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)
        status = 0
    except Exception:  # noqa: BLE001  # whatever it is, this process must not go on as a second parent
        import traceback  # noqa: PLC0415

        traceback.print_exc()
    finally:
        os._exit(status)
