"""The log that a configuration may ask for (logFile, logLevel), as sriov-cni has it.

One line per event, appended by one write, so that plugins that run at the same time do not mix theirs.
Without ``logFile`` what is worth a line goes to stderr, as it always does.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cni.location import is_absolute
from cni.spec import Config, Request

LEVELS: Final = ("panic", "error", "warning", "info", "debug")
DEFAULT: Final = "info"


@contextmanager
def kept(request: Request, conf: Config, lines: list[str]) -> Iterator[None]:
    """Log the command that runs inside: its lines, how it ended, and its configuration if debugging.

    Never in the command's way: a log that cannot be written is one more line for stderr.
    """
    path, level = conf.get("logFile"), conf.get("logLevel", DEFAULT)
    if not isinstance(path, str) or not is_absolute(path) or level not in LEVELS:
        yield
        return
    started, ended = time.monotonic(), ("info", "done")
    try:
        yield
    except BaseException as e:
        ended = ("error", f"{e!r} {'; '.join(getattr(e, '__notes__', ()))}".strip())
        raise
    finally:
        took = f"{(time.monotonic() - started) * 1000:.0f} ms"
        events = [
            ("debug", f"asked with {request.stdin.decode(errors='replace')!r} CNI_ARGS={request.var('CNI_ARGS')!r}"),
            *(("warning", line) for line in lines),
            (ended[0], f"{ended[1]} after {took}"),
        ]
        most = LEVELS.index(level)
        text = "".join(_line(request, conf, *event) for event in events if LEVELS.index(event[0]) <= most)
        try:
            _append(path, text)
        except OSError as e:
            lines.append(f"logFile {path!r} cannot be written: {e.strerror}")


def _line(request: Request, conf: Config, level: str, event: str) -> str:
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    key = request.key
    of = f"{conf.get('name')}/{key}" if key.container_id else conf.get("name")
    return f"{now} {level} {request.command} {of}: {event}\n"


def _append(path: str, text: str) -> None:
    if text:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
