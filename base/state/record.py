"""One attachment's record in the journal: its changes and its configuration; and the legible parts of a damaged record.

Those parts are a hint, and no proof: a process that damaged the record may have written them.
"""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from base.kernel import sysfs
from base.protocol.spec import Json, Key
from base.state import durable
from base.state.pod import Identity

# Members that most records omit, with their values then.
_RARE = {"given": True, "refusals": 0, "trouble": "", "steering": {}, "claim": "", "rail_of": ""}

# The kind of a record that replaces an unreadable one (cni/kinds/lost.py).
LOST = "lost"
_NETNS = rb'"netns":"(/[^"\\\\]{1,4095})"'  # compiled on use, which is rare
_IDENTITY = rb'"identity":({[^{}]{1,200}})'
_SOFTWARE = b'"software":{'  # in a plan of cni/kinds/host_device
_LONGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class Record:
    """One attachment.

    - ``netns``, ``identity``: the pod's namespace: CNI_NETNS, and its identity.
    - ``kind``, ``link``: the kind, and the kind's own data (cni/kinds).
    - ``config``: ADD's stdin, for delegates.
    - ``args``, ``pod``: CNI_ARGS, and the pod's name in it.
    - ``rxe``: the name of the soft-RoCE device, or empty (features/rxe.py).
    - ``sysctl``, ``rules``: the settings and rules in the pod's namespace (features/tuning.py, features/routing.py).
    - ``boot``, ``time``: the boot id, and when the record was first written (ISO 8601, UTC).
    - ``complete``, ``result``: whether ADD has ended, and its result in the newest version's shape.
    - ``gids``: the addresses' places in GID tables (features/gids.py).
    - ``device_info``: the file that names the device, and its earlier content (features/device_info.py).
    - ``steering``: the processors set for a device's queues and interrupts (features/steering.py).
    - ``claim``: the prepared claim's UID and the number of its device in it, "<uid>/<number>" (base/state/claims.py).
    - ``rail_of``: the interface that ADD's request named, if it attached several rails (cni/rails.py); else empty.
    - ``given``: false if the IPAM plugin answered ADD with an error.
    - ``refusals``, ``trouble``: how often the IPAM plugin refused to release, and its last reason, for people.
    """

    network: str
    key: Key
    netns: str
    identity: Identity
    kind: str
    link: Json
    config: Json
    args: str = ""
    pod: str = ""
    rxe: str = ""
    sysctl: Json = field(default_factory=dict)
    rules: list[Json] = field(default_factory=list)
    boot: str = field(default_factory=durable.boot_id)
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    complete: bool = False
    result: Json = field(default_factory=dict)
    gids: list[Json] = field(default_factory=list)
    device_info: Json = field(default_factory=dict)
    steering: Json = field(default_factory=dict)
    claim: str = ""
    rail_of: str = ""
    given: bool = True
    refusals: int = 0
    trouble: str = ""

    @property
    def title(self) -> str:
        """The attachment's name in a message for people."""
        return self.key.of(self.pod, self.network)

    @property
    def requested(self) -> Key:
        """The key of ADD's request."""
        return Key(self.key.container_id, self.rail_of or self.key.ifname)

    @property
    def rdma_devs(self) -> list[str]:
        """The RDMA devices that reach its addresses."""
        return [self.rxe] if self.rxe else list(self.link.get("rdma_devs", ()))

    @property
    def host_network(self) -> Json:
        """The host's network that its device took into the pod (base/kernel/host_network.py); empty for none."""
        return (self.link.get("home") or {}).get("network") or {}

    @property
    def of_this_boot(self) -> bool:
        """Whether its devices and namespaces can still be the same ones."""
        return self.boot == durable.boot_id()

    def to_json(self) -> Json:
        """The record as a JSON object.  It omits rare members, so that an older version can read most records."""
        body = {**vars(self), "key": vars(self.key), "identity": vars(self.identity)}
        return {name: value for name, value in body.items() if name not in _RARE or value != _RARE[name]}

    @property
    def device(self) -> str:
        """The bus address of its device; empty if that device is gone, even if another one has the address now."""
        address = str(self.link.get("device", ""))
        there = address and self.of_this_boot and sysfs.incarnation(address) == self.link.get("incarnation")
        return address if there else ""

    @classmethod
    def from_json(cls, body: Json) -> "Record":
        """``to_json``'s inverse.  Raises KeyError, TypeError or ValueError if it is not a record."""
        return cls(**{**body, "key": Key(**body["key"]), "identity": Identity.from_json(body["identity"])})


def netns_in(text: bytes) -> str:
    """The ``netns`` of a record in its file's text, which may be damaged; empty if there is none.  Decoding and
    checking the whole record takes seven times as long."""
    # Strings in JSON have no unescaped quotation marks, so this is a member, and the only one of that name.
    _, *found = text.split(b'"netns":"', 2)
    path = found[0].partition(b'"')[0] if len(found) == 1 else b"\\"
    if b"\\" not in path:
        return os.fsdecode(path)
    try:
        return str(json.loads(text)["body"]["netns"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


def legible(damaged: str, key: Key) -> tuple[str, Identity, bool]:
    """The legible parts of a damaged record: path, identity, flag.

    Path and identity are those of its namespace.  The flag is set if its interface was the host's before, and is made
    of software.

    Path and identity are empty and zeros if they are illegible, or if the record does not name the attachment ``key``.
    """
    netns, identity, text = "", Identity(0, 0), b""
    with suppress(OSError, ValueError, KeyError, TypeError):
        fd = os.open(damaged, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            text = os.read(fd, _LONGEST)
        finally:
            os.close(fd)
        path, body = re.search(_NETNS, text), re.search(_IDENTITY, text)
        if path and body and f'"container_id":"{key.container_id}","ifname":"{key.ifname}"'.encode() in text:
            identity = Identity.from_json(json.loads(body[1]))
            netns = os.fsdecode(path[1])
    return netns, identity, _SOFTWARE in text
