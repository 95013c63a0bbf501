"""The log that a configuration may ask for: logFile and logLevel, as with sriov-cni, and logFormat.

An event is one line, whatever the input has.  One write appends all lines of a command, so that commands that run at
the same time do not mix theirs.  With or without a log file, warnings go to stderr.

What a command answers never depends on whether its log could be written.
"""

import errno
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cni.protocol.errors import InvalidConfig, told
from cni.protocol.location import is_absolute, location
from cni.protocol.spec import Config, Json, Request
from cni.state import node

if TYPE_CHECKING:
    from cni.state.log_file import LogFile
    from cni.state.record import Record

LEVELS: Final = ("panic", "error", "warning", "info", "debug")
DEFAULT: Final = "info"
FORMATS: Final = ("json", "text")
# In the place of a file: the command's own stderr.
STDERR: Final = "stderr"

# These come again and again, and change nothing.  Their success is a line only for debugging.
_QUIET: Final = ("STATUS", "CHECK")
# These go on without a log: a pod must be deletable, whatever has become of its configuration.
_FORGIVING: Final = ("DEL", "GC")  # guard: forgiving = ()
# Errors for a link, a FIFO or a device, which is never a log.  Other errors, such as a full disk, may pass.
_NO_PLACE: Final = (errno.EINVAL, errno.ELOOP, errno.ENOTDIR)
# Characters of one member.  A configuration has a few hundred.
_LONGEST: Final = 1 << 14
# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace, parent, flags; a later version may have more.
_TRACE: Final = r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,200})?"
_encode = json.JSONEncoder(separators=(",", ":")).encode


@contextmanager
def log_command(request: Request, conf: Config, lines: list[str]) -> Iterator[None]:
    """Log the command that runs inside: its ``lines``, how it ended, and its configuration if ``logLevel`` is debug.

    Raises InvalidConfig before the command begins for a path that the node does not allow, or that is no file.  Any
    other failure to write the log is one more line for stderr.  For DEL and GC, all failures are.
    """
    if not _is_asked_for(conf):
        yield
        return
    log = None if conf["logFile"] == STDERR else _open(request, conf["logFile"], lines)
    started, ended, code = time.monotonic(), ("debug" if request.command in _QUIET else "info", "done"), 0
    before = _attached(request, conf) if request.command == "DEL" else {}
    try:
        yield
    except BaseException as e:
        answered = told(e)
        ended, code = ("error", "; ".join(filter(None, (answered.msg, answered.details)))), answered.code
        raise
    finally:
        took = {"duration_ms": round((time.monotonic() - started) * 1000, 1), **({"code": code} if code else {})}
        try:
            about = before or _attached(request, conf)
            _write(log, _events(request, conf, lines, (*ended, {**about, **took})), conf, lines)
        # guard below: a-bug = OSError
        except Exception as e:  # noqa: BLE001  # whatever it is: the command has ended as it has
            lines.append(f"logFile {conf['logFile']!r} cannot be written: {getattr(e, 'strerror', None) or repr(e)}")
        finally:
            if log:  # guard: closed
                log.close()


def _is_asked_for(conf: Config) -> bool:
    """Whether there is a log to write.  ADD and CHECK refuse what is malformed here."""
    path = conf.get("logFile")
    is_place = isinstance(path, str) and (path == STDERR or is_absolute(path))
    return is_place and conf.get("logLevel", DEFAULT) in LEVELS and conf.get("logFormat", FORMATS[0]) in FORMATS


def _open(request: Request, path: str, lines: list[str]) -> "LogFile | None":
    """The log; None if it cannot be opened, and a line says why."""
    from cni.state import log_file  # noqa: PLC0415  # most networks have no log

    try:
        # guard below: allowed (_allowed(request, lines) -> ["/"])
        return log_file.open_for_append(node.place("logFile", path, _allowed(request, lines)))
    except InvalidConfig as e:
        if request.command not in _FORGIVING:  # guard: refused-before
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
        return node.allowed_paths("logFile")
    except InvalidConfig as e:
        if request.command not in _FORGIVING:
            raise
        lines.append(e.msg)
        return node.DEFAULTS["logFile"]


def _attached(request: Request, conf: Config) -> Json:
    """What the attachment is made of: ``pci``, the address of its function, and the names of its RDMA devices.  Where
    there is no attachment it is the device that is asked for."""
    from cni.state import journal  # noqa: PLC0415  # as above

    try:
        where = location(conf)
        record = journal.peek(where.state_dir, where.network, request.key) if request.key.container_id else None
        found = _made_of(record) if record else _asked_for(conf)
    except Exception:  # noqa: BLE001  # whatever the record is: DEL has not begun yet, and must
        found = _asked_for(conf)
    return {name: value for name, value in found.items() if value and isinstance(value, str)}


def _made_of(record: "Record") -> Json:
    return {"pci": record.link.get("pci") or record.link.get("device"), "rdma": ",".join(record.rdma_devs)}


def _asked_for(conf: Config) -> Json:
    places = (conf.get("runtimeConfig"), conf)
    return {"pci": next((place["deviceID"] for place in places if isinstance(place, dict) and "deviceID" in place), "")}


def _events(request: Request, conf: Config, lines: Sequence[str], end: tuple[str, str, Json]) -> Iterator[Json]:
    """What is logged of the command, up to the level that its configuration asks for."""
    asked = {"stdin": request.stdin.decode(errors="replace"), "args": request.var("CNI_ARGS")}
    events: list[tuple[str, str, Json]] = [("debug", "asked", asked), *(("warning", line, {}) for line in lines), end]
    most, of = LEVELS.index(conf.get("logLevel", DEFAULT)), _of(request, conf)
    for level, message, more in events:
        if LEVELS.index(level) <= most:
            fields = {"time": _now(), "level": level, **of, "message": message, **more}
            # guard below: short ([:_LONGEST])
            yield {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in fields.items()}


def _of(request: Request, conf: Config) -> Json:
    """What all lines of a command have."""
    key, pod, trace = request.key, _pod(request), request.var("TRACEPARENT")
    parts = re.fullmatch(_TRACE, trace)
    return {
        "command": request.command,
        "network": str(conf.get("name")),
        **({"container": key.container_id, "ifname": key.ifname} if key.container_id else {}),
        **({"pod": pod} if pod else {}),
        **({"traceparent": trace} if parts and (parts[1] != "00" or not parts[2]) else {}),
    }  # guard: trace (parts and (parts[1] != "00" or not parts[2]) -> trace)


def _now() -> str:
    now = time.time()
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{int(now * 1000) % 1000:03}%z", time.localtime(now))


def _pod(request: Request) -> str:
    """The pod's "namespace/name"; empty if CNI_ARGS does not have it."""
    args = dict(pair.partition("=")[::2] for pair in request.var("CNI_ARGS").split(";"))
    return "/".join(filter(None, (args.get("K8S_POD_NAMESPACE"), args.get("K8S_POD_NAME"))))


def _write(log: "LogFile | None", events: Iterator[Json], conf: Config, lines: list[str]) -> None:
    """Append the events to the log; if that is stderr, they stand for the lines.  Raises OSError."""
    line = _encode if conf.get("logFormat", FORMATS[0]) == "json" else _words
    if conf["logFile"] == STDERR:
        lines[:] = map(line, events)
    elif log:
        log.append("".join(f"{line(event)}\n" for event in events), lines)


def _words(event: Json) -> str:
    """The event as name=value; a value with a blank or with what cannot be printed is quoted as in JSON."""
    return " ".join(f"{name}={value if _is_plain(f'{value}') else _encode(value)}" for name, value in event.items())


def _is_plain(value: str) -> bool:
    # guard below: quoted (set(' "=\\') -> set())
    return value != "" and value.isascii() and value.isprintable() and not set(value) & set(' "=\\')
