"""A command's log, if a configuration requests one: its lines, and the file that they are appended to.

An event is one line of JSON or text.  All lines of a command identify it by network, container, pod, and the runtime's
trace (W3C's trace context).  The last line also names the attachment's devices.

Several processes append to the file at once, and it is bounded.  The command that finds it above LIMIT renames it to
FILE.old, replacing the earlier one, and begins a new file.  A process that has the old file open may still append lines
to it.  FILE.1 is logrotate's name, and its files must not be replaced.
"""

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from base.protocol.errors import InvalidConfig
from base.protocol.location import location
from base.protocol.spec import Config, Json, Request
from base.state import journal
from base.state.policy import Place

# Bytes: some 50,000 commands.
LIMIT: Final = 1 << 24
OLD: Final = ".old"
# Characters of one member.  A configuration has a few hundred.
_LONGEST: Final = 1 << 14
# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace, parent, flags; a later version may append
# more.
_TRACE: Final = r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,200})?"
as_json = json.JSONEncoder(separators=(",", ":")).encode


@dataclass
class LogFile:
    """A log that is open for one ``append``, until ``close``."""

    place: Place
    fd: int

    def append(self, text: str, lines: list[str]) -> None:
        """Append the text by one write.  ``lines`` gets one more if the file is full and cannot be renamed.  Raises
        OSError, ENOSPC also if only a part of the text could be written."""
        self._begin_another_if_full(lines)
        data = text.encode()
        if os.write(self.fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        os.close(self.fd)

    def _begin_another_if_full(self, lines: list[str]) -> None:
        """Rename a full file and open a new one.  Other commands may have done so since this one opened the file.  If a
        new one cannot be opened, the text goes to the open one."""
        found = os.fstat(self.fd)
        if found.st_nlink and found.st_size < LIMIT:
            return
        try:
            if found.st_nlink and (why := self._why_it_stays(found.st_size)):
                name = os.path.basename(os.path.normpath(self.place.path))
                lines.append(f"logFile {self.place.path!r} is full and cannot be renamed to {name}{OLD}: {why}")
            another = self.place.open_for_append()
        except FileNotFoundError:  # its directory was removed
            return
        except OSError as e:
            lines.append(
                f"logFile {self.place.path!r} cannot be reopened: {e.strerror}; these lines are in the old file"
            )
            return
        os.close(self.fd)
        self.fd = another

    def _why_it_stays(self, size: int) -> str:
        """Rename the file to FILE.old; return why that failed, or nothing if it is done, or in progress in another
        process.  Raises OSError."""
        if not self.place.names:
            return "the node allows this file, but not its directory; allow that, or have logrotate move the file"
        with self.place.folder() as (folder, name):
            try:
                _rename(folder, name, self.fd)
            except BlockingIOError:
                # Every user who can read the file can hold its lock for ever.
                return "" if size < 2 * LIMIT else "another process holds its lock; see: lslocks"
            except OSError as e:
                return e.strerror or repr(e)
        return ""


def open_for_append(place: Place) -> LogFile:
    """Open the log; make it if it is missing.  Raises OSError; InvalidConfig for a name of an older file, which may
    belong to another network's log."""
    if os.path.normpath(place.path).endswith(OLD):
        raise InvalidConfig(f"logFile {place.path!r} ends in {OLD}, the suffix of a full log; choose another name")
    return LogFile(place, place.open_for_append())


def _rename(folder: int, name: str, fd: int) -> None:
    """Rename the file to FILE.old, unless another process did.  Raises OSError, BlockingIOError if another process is
    at it."""
    with suppress(FileNotFoundError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released by close
        ours, there = os.fstat(fd), os.stat(name, dir_fd=folder, follow_symlinks=False)
        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
            os.rename(name, f"{name}{OLD}", src_dir_fd=folder, dst_dir_fd=folder)


def attached(request: Request, conf: Config) -> Json:
    """The attachment's ``pci``, its function's address, and ``rdma``, its RDMA devices' names.  Without an attachment,
    they are the requested device's."""
    places = (conf.get("runtimeConfig"), conf)
    asked = next((place["deviceID"] for place in places if isinstance(place, dict) and "deviceID" in place), "")
    found: Json = {"pci": asked}
    with suppress(Exception):  # whatever the record holds: DEL has not begun yet, and must
        where = location(conf)
        record = journal.peek(where.state_dir, where.network, request.key) if request.key.container_id else None
        if record:
            found = {"pci": record.link.get("pci") or record.link.get("device"), "rdma": ",".join(record.rdma_devs)}
    return {name: value for name, value in found.items() if value and isinstance(value, str)}


def events(request: Request, conf: Config, lines: Sequence[str], end: tuple[str, str, Json]) -> Iterator[Json]:
    """The command's events of all levels."""
    debug = {"stdin": request.stdin.decode(errors="replace"), "args": request.var("CNI_ARGS")}
    found: list[tuple[str, str, Json]] = [("debug", "asked", debug), *(("warning", line, {}) for line in lines), end]
    of = _of(request, conf)
    for level, message, more in found:
        now = time.time()
        written = time.strftime(f"%Y-%m-%dT%H:%M:%S.{int(now * 1000) % 1000:03}%z", time.localtime(now))
        fields = {"time": written, "level": level, **of, "message": message, **more}
        yield {name: value[:_LONGEST] if isinstance(value, str) else value for name, value in fields.items()}


def _of(request: Request, conf: Config) -> Json:
    """The members that all lines of a command share."""
    key, trace = request.key, request.var("TRACEPARENT")
    args = dict(pair.partition("=")[::2] for pair in request.var("CNI_ARGS").split(";"))
    pod = "/".join(filter(None, (args.get("K8S_POD_NAMESPACE"), args.get("K8S_POD_NAME"))))
    parts = re.fullmatch(_TRACE, trace)
    return {
        "command": request.command,
        "network": str(conf.get("name")),
        **({"container": key.container_id, "ifname": key.ifname} if key.container_id else {}),
        **({"pod": pod} if pod else {}),
        **({"traceparent": trace} if parts and (parts[1] != "00" or not parts[2]) else {}),
    }


def as_text(event: Json) -> str:
    """The event as name=value; a value with blanks or unprintable characters is quoted as in JSON."""
    return " ".join(f"{name}={value if _is_plain(f'{value}') else as_json(value)}" for name, value in event.items())


def _is_plain(value: str) -> bool:
    return value != "" and value.isascii() and value.isprintable() and not set(value) & set(' "=\\')
