"""What the log of a command says: its events, each as one line of JSON or text.

All lines of a command have what identifies it: network, container, pod, and the runtime's trace (W3C's trace context).
The last also has what the attachment is made of.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

from base.protocol.location import location
from base.protocol.spec import Config, Json, Request
from base.state import journal
from base.state.record import Record

# Characters of one member.  A configuration has a few hundred.
_LONGEST: Final = 1 << 14
# https://www.w3.org/TR/trace-context/#traceparent-header: version, trace, parent, flags; a later version may have more.
_TRACE: Final = r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,200})?"
as_json = json.JSONEncoder(separators=(",", ":")).encode


def attached(request: Request, conf: Config) -> Json:
    """What the attachment is made of: ``pci``, the address of its function, and the names of its RDMA devices.  Where
    there is no attachment it is the device that is asked for."""
    try:
        where = location(conf)
        record = journal.peek(where.state_dir, where.network, request.key) if request.key.container_id else None
        found = _made_of(record) if record else _asked_for(conf)
    except Exception:  # noqa: BLE001  # whatever the record is: DEL has not begun yet, and must
        found = _asked_for(conf)
    return {name: value for name, value in found.items() if value and isinstance(value, str)}


def _made_of(record: Record) -> Json:
    return {"pci": record.link.get("pci") or record.link.get("device"), "rdma": ",".join(record.rdma_devs)}


def _asked_for(conf: Config) -> Json:
    places = (conf.get("runtimeConfig"), conf)
    return {"pci": next((place["deviceID"] for place in places if isinstance(place, dict) and "deviceID" in place), "")}


def events(request: Request, conf: Config, lines: Sequence[str], end: tuple[str, str, Json]) -> Iterator[Json]:
    """What is logged of the command, at every level."""
    asked = {"stdin": request.stdin.decode(errors="replace"), "args": request.var("CNI_ARGS")}
    found: list[tuple[str, str, Json]] = [("debug", "asked", asked), *(("warning", line, {}) for line in lines), end]
    of = _of(request, conf)
    for level, message, more in found:
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


def as_text(event: Json) -> str:
    """The event as name=value; a value with a blank or with what cannot be printed is quoted as in JSON."""
    return " ".join(f"{name}={value if _is_plain(f'{value}') else as_json(value)}" for name, value in event.items())


def _is_plain(value: str) -> bool:
    # guard below: quoted (set(' "=\\') -> set())
    return value != "" and value.isascii() and value.isprintable() and not set(value) & set(' "=\\')
