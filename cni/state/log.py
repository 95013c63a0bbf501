"""The log that a configuration may ask for (logFile, logLevel), as with sriov-cni.

An event is one line of JSON, whatever the input has.  One write appends all lines of a command, so that commands that
run at the same time do not mix theirs.  With or without a log, warnings go to stderr.
"""

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cni.protocol.errors import InvalidConfig
from cni.protocol.location import is_absolute
from cni.protocol.spec import Config, Json, Request
from cni.state import node

LEVELS: Final = ("panic", "error", "warning", "info", "debug")
DEFAULT: Final = "info"

# These come again and again, and change nothing.  Their success is a line only for debugging.
_QUIET: Final = ("STATUS", "CHECK")
# These go on without a log: a pod must be deletable, whatever has become of its configuration.
_FORGIVING: Final = ("DEL", "GC")
# Errors for a link, a FIFO or a device, which is never a log.  Other errors, such as a full disk, may pass.
_NO_PLACE: Final = (errno.EINVAL, errno.ELOOP, errno.ENOTDIR)
# Characters of one member.  A configuration has a few hundred.
_LONGEST: Final = 1 << 14
_encode = json.JSONEncoder(separators=(",", ":")).encode


@contextmanager
def log_command(request: Request, conf: Config, lines: list[str]) -> Iterator[None]:
    """Log the command that runs inside: its ``lines``, how it ended, and its configuration if ``logLevel`` is debug.

    Raises InvalidConfig before the command begins for a path that the node does not allow, or that is no file.  Any
    other failure to write the log is one more line for stderr.  For DEL and GC, all failures are.
    """
    path, level = conf.get("logFile"), conf.get("logLevel", DEFAULT)
    if not isinstance(path, str) or not is_absolute(path) or level not in LEVELS:
        yield
        return
    fd = _open(request, path, lines)
    started, ended, code = time.monotonic(), ("debug" if request.command in _QUIET else "info", "done"), 0
    try:
        yield
    except BaseException as e:
        ended, code = ("error", _text(e)), getattr(e, "code", 999)
        raise
    finally:
        took = {"duration_ms": round((time.monotonic() - started) * 1000, 1)}
        asked = {"stdin": request.stdin.decode(errors="replace"), "args": request.var("CNI_ARGS")}
        events: list[tuple[str, str, Json]] = [
            ("debug", "asked", asked),
            *(("warning", line, {}) for line in lines),
            (*ended, {"code": code, **took} if code else took),
        ]
        most = LEVELS.index(level)
        text = "".join(_line(request, conf, *event) for event in events if LEVELS.index(event[0]) <= most)
        if fd >= 0:
            _append(fd, path, text, lines)


def _open(request: Request, path: str, lines: list[str]) -> int:
    """A descriptor of the log; -1 if it cannot be opened, and a line says why."""
    try:
        place = node.place("logFile", path, _allowed(request, lines))
        return place.open_for_append()
    except InvalidConfig as e:
        if request.command not in _FORGIVING:
            raise
        lines.append(e.msg)
    except OSError as e:
        why = f"logFile {path!r} cannot be written: {e.strerror}"
        if e.errno in _NO_PLACE and request.command not in _FORGIVING:
            raise InvalidConfig(f"{why}; name a regular file, and no link") from e
        lines.append(why)
    return -1


def _allowed(request: Request, lines: list[str]) -> tuple[str, ...]:
    try:
        return node.allowed_paths("logFile")
    except InvalidConfig as e:
        if request.command not in _FORGIVING:
            raise
        lines.append(e.msg)
        return node.DEFAULTS["logFile"]


def _text(error: BaseException) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = f"{getattr(error, 'msg', '')}" or repr(error)
    return f"{text}; {notes}" if notes else text


def _line(request: Request, conf: Config, level: str, message: str, more: Json) -> str:
    key, pod = request.key, _pod(request)
    fields: Json = {
        "time": _now(),
        "level": level,
        "command": request.command,
        "network": str(conf.get("name")),
        **({"container": key.container_id, "ifname": key.ifname} if key.container_id else {}),
        **({"pod": pod} if pod else {}),
        "message": message,
        **more,
    }
    short = {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in fields.items()}
    return _encode(short) + "\n"


def _now() -> str:
    now = time.time()
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{int(now * 1000) % 1000:03}%z", time.localtime(now))


def _pod(request: Request) -> str:
    """The pod's "namespace/name"; empty if CNI_ARGS does not have it."""
    args = dict(pair.partition("=")[::2] for pair in request.var("CNI_ARGS").split(";"))
    return "/".join(filter(None, (args.get("K8S_POD_NAMESPACE"), args.get("K8S_POD_NAME"))))


def _append(fd: int, path: str, text: str, lines: list[str]) -> None:
    try:
        if text:
            os.write(fd, text.encode())
    except OSError as e:
        lines.append(f"logFile {path!r} cannot be written: {e.strerror}")
    finally:
        os.close(fd)
