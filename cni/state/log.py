"""The log that a configuration may ask for (logFile, logLevel), as sriov-cni has it.

A line of JSON per event, whatever the input holds; a command's lines are appended by one write, so that plugins that
run at the same time do not mix theirs.  Without ``logFile`` what is worth a line goes to stderr, as it always does.
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

# Asked again and again, and they change nothing: what succeeds is worth a line to who looks for a fault only.
_QUIET: Final = ("STATUS", "CHECK")
# A pod must go whatever has become of its configuration.
_FORGIVING: Final = ("DEL", "GC")
# A link, a FIFO, a device: no log, whoever made it.  Anything else, such as a full disk, may pass.
_NO_PLACE: Final = (errno.EINVAL, errno.ELOOP, errno.ENOTDIR)
# Characters.  A configuration has a few hundred.
_LONGEST: Final = 1 << 14
_encode = json.JSONEncoder(separators=(",", ":")).encode


@contextmanager
def log_command(request: Request, conf: Config, lines: list[str]) -> Iterator[None]:
    """Log the command that runs inside: its lines, how it ended, and its configuration if debugging.

    Raises InvalidConfig for a path that the node does not allow, before the command begins.  Any other log that cannot
    be written is one more line for stderr; to DEL and GC every one is.
    """
    path, level = conf.get("logFile"), conf.get("logLevel", DEFAULT)
    if not isinstance(path, str) or not is_absolute(path) or level not in LEVELS:
        yield
        return
    fd = _opened(request, path, lines)
    started, ended, code = time.monotonic(), ("debug" if request.command in _QUIET else "info", "done"), 0
    try:
        yield
    except BaseException as e:
        ended, code = ("error", _said(e)), getattr(e, "code", 999)
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


def _opened(request: Request, path: str, lines: list[str]) -> int:
    """The log's descriptor, -1 where it cannot be had."""
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
            raise InvalidConfig(f"{why}; name a regular file, by no link") from e
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


def _said(error: BaseException) -> str:
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
    """As Kubernetes calls it; empty where CNI_ARGS does not say."""
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
