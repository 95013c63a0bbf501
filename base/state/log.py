"""The log that a configuration may request: logFile and logLevel, as with sriov-cni, and logFormat.

An event is one line, whatever the input contains.  One write appends all lines of a command, so that concurrent
commands do not mix theirs.  Warnings go to stderr, with or without a log file.

No command's answer depends on whether its log could be written.
"""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from base.protocol.errors import InvalidConfig, as_cni_error
from base.protocol.location import is_absolute
from base.protocol.spec import Config, Request
from base.state import policy

if TYPE_CHECKING:
    from base.state.log_file import LogFile

LEVELS: Final = ("panic", "error", "warning", "info", "debug")
DEFAULT: Final = "info"
FORMATS: Final = ("json", "text")
# In place of a file: the command's own stderr.
STDERR: Final = "stderr"

# These repeat all the time, and change nothing.  Their success is logged only for debugging.
_QUIET: Final = ("STATUS", "CHECK")
# These go on without a log: a pod must be deletable, whatever its configuration has become.
_FORGIVING: Final = ("DEL", "GC")
# Errors for a link, a FIFO or a device, which is never a log.  Other errors, such as a full disk, may pass.
_NO_PLACE: Final = (errno.EINVAL, errno.ELOOP, errno.ENOTDIR)


@contextmanager
def log_command(request: Request, conf: Config, lines: list[str]) -> Iterator[None]:
    """Log the command that runs inside: its ``lines``, its end, and its configuration if ``logLevel`` is debug.

    With ``logFile`` stderr, the encoded events replace ``lines``.

    Raises InvalidConfig before the command begins, for a path that the node does not allow, or that is not a file.  Any
    other failure to write the log is one more line for stderr.  For DEL and GC, all failures are.
    """
    if not _is_asked_for(conf):
        yield
        return
    from base.state import log_file  # noqa: PLC0415  # most networks have no log

    log = None if conf["logFile"] == STDERR else _open(request, conf["logFile"], lines)
    started, ended, code = time.monotonic(), ("debug" if request.command in _QUIET else "info", "done"), 0
    before = log_file.attached(request, conf) if request.command == "DEL" else {}
    try:
        yield
    except BaseException as e:
        answered = as_cni_error(e)
        ended, code = ("error", "; ".join(filter(None, (answered.msg, answered.details)))), answered.code
        raise
    finally:
        took = {"duration_ms": round((time.monotonic() - started) * 1000, 1), **({"code": code} if code else {})}
        try:
            about = before or log_file.attached(request, conf)
            levels = LEVELS[: LEVELS.index(conf.get("logLevel", DEFAULT)) + 1]
            events = log_file.events(request, conf, lines, (*ended, {**about, **took}))
            encode = log_file.as_json if conf.get("logFormat", FORMATS[0]) == "json" else log_file.as_text
            written = [encode(event) for event in events if event["level"] in levels]
            if conf["logFile"] == STDERR:
                lines[:] = written
            elif log:
                log.append("".join(f"{line}\n" for line in written), lines)
        except Exception as e:  # noqa: BLE001  # whatever it is: the command's answer stands
            lines.append(f"logFile {conf['logFile']!r} cannot be written: {getattr(e, 'strerror', None) or repr(e)}")
        finally:
            if log:
                log.close()


def _is_asked_for(conf: Config) -> bool:
    """Whether the configuration requests a log with well-formed keys.  ADD and CHECK refuse malformed ones later."""
    path = conf.get("logFile")
    is_place = isinstance(path, str) and (path == STDERR or is_absolute(path))
    return is_place and conf.get("logLevel", DEFAULT) in LEVELS and conf.get("logFormat", FORMATS[0]) in FORMATS


def _open(request: Request, path: str, lines: list[str]) -> "LogFile | None":
    """The log; None if it cannot be opened, with the reason in ``lines``."""
    from base.state import log_file  # noqa: PLC0415  # as above

    try:
        return log_file.open_for_append(policy.place("logFile", path, _allowed(request, lines)))
    except InvalidConfig as e:
        if request.command not in _FORGIVING:
            raise
        lines.append(e.msg)
    except OSError as e:
        why = f"logFile {path!r} cannot be written: {e.strerror}"
        if e.errno in _NO_PLACE and request.command not in _FORGIVING:
            raise InvalidConfig(f"{why}; name a regular file, and no link") from e
        lines.append(why)
    return None


def _allowed(request: Request, lines: list[str]) -> tuple[str, ...]:
    try:
        return policy.allowed_paths("logFile")
    except InvalidConfig as e:
        if request.command not in _FORGIVING:
            raise
        lines.append(e.msg)
        return policy.DEFAULTS["logFile"]
