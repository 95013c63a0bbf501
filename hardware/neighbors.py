"""The switch's port at the other end of each PF, as LLDP announced it: what ``hpn node`` hears, and others show.

hpn node keeps it in a file for one boot.  A PF in a pod's namespace hears nothing, so the last neighbor stays, with the
time at which it was heard.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from base.protocol.errors import CniError
from base.protocol.location import STATE_DIR
from base.protocol.spec import Json
from base.state import durable

FILE: Final = Path(STATE_DIR, "node", "neighbors.json")
SwitchPort = tuple[str, str]
TEXT_MOST: Final = 255  # characters
_NUMBER_MOST: Final = 0xFFFF
# Ports of these kinds have a number or a MAC; the description has the name that people use.
_UNNAMED: Final = ("mac", "ip", "component", "circuit")


@dataclass(frozen=True, slots=True)
class Neighbor:
    """The port of a switch, as its LLDPDU names it.

    - ``chassis``, ``port``: its identities; ``chassis_kind``, ``port_kind``: "mac", "ifname", "local", "ifalias",
      "ip", ...
    - ``name``: the switch's name; ``description``: the port's; empty if not announced.
    - ``vlan``: the port's VLAN for untagged frames; ``max_frame``: in bytes; 0 if not announced.
    - ``ttl``: the seconds for which the announcement holds; 0 after the switch has withdrawn it.
    - ``speed``: of the link in Gb/s, when it was heard; 0 if unknown.
    - ``heard``: when, in seconds of CLOCK_BOOTTIME.
    """

    chassis_kind: str
    chassis: str
    port_kind: str
    port: str
    name: str = ""
    description: str = ""
    vlan: int = 0
    max_frame: int = 0
    ttl: int = 0
    speed: int = 0
    heard: int = 0

    @property
    def identity(self) -> SwitchPort:
        """The switch and the port.  Some switches have another chassis on each port."""
        return self.chassis, self.port

    @property
    def leaf(self) -> str:
        """The switch, for people: its name, or else its identity."""
        return self.name or self.chassis

    @property
    def leaf_port(self) -> str:
        """The port, for people: its identity, or its description if the identity is a MAC or a number."""
        is_name = self.port_kind not in _UNNAMED and not self.port.isdecimal()
        return self.port if is_name or not self.description else self.description

    @property
    def essence(self) -> tuple[object, ...]:
        """What others compare: all but the times."""
        return self.leaf, self.leaf_port, self.vlan, self.max_frame, self.speed

    def age(self, now: int) -> int:
        """Seconds since it was heard."""
        return max(now - self.heard, 0)

    def is_current(self, now: int) -> bool:
        """Whether the announcement still holds."""
        return self.age(now) < self.ttl

    def shown(self, now: int) -> Json:
        """For JSON documents."""
        return {
            "leaf": self.leaf,
            "leafPort": self.leaf_port,
            "chassis": {"type": self.chassis_kind, "value": self.chassis, "name": self.name},
            "port": {"type": self.port_kind, "value": self.port, "description": self.description},
            "vlan": self.vlan or None,
            "maxFrame": self.max_frame or None,
            "speed": self.speed or None,
            "ttl": self.ttl,
            "age": self.age(now),
            "current": self.is_current(now),
        }


def file_of(root: Path) -> Path:
    """The file of the machine with this /sys."""
    return root.parent / FILE.relative_to("/")


def now() -> int:
    """The present second of CLOCK_BOOTTIME, which counts while the node sleeps, and which cannot be set."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


def taken_by_firmware(name: str, flags: Mapping[str, bool]) -> str:
    """The command that stops an agent in the firmware of this interface, which takes all frames of LLDP; empty if none
    is known.  ``flags`` are the private flags of its driver: ice has the first one, i40e the second."""
    if flags.get("fw-lldp-agent"):
        return f"ethtool --set-priv-flags {name} fw-lldp-agent off"
    if flags.get("disable-fw-lldp") is False:
        return f"ethtool --set-priv-flags {name} disable-fw-lldp on"
    return ""


def parsed(body: Any) -> Neighbor:
    """The neighbor in a document, which may be anything.  Raises ValueError."""
    if not isinstance(body, dict) or body.keys() != _TYPES.keys():
        raise ValueError("other members than those of a neighbor")
    for key, kind in _TYPES.items():
        value = body[key]
        if type(value) is not kind:
            raise ValueError(f"{key} is of another type")
        if isinstance(value, str) and not (len(value) <= TEXT_MOST and value.isprintable()):
            raise ValueError(f"{key} is too long, or not printable")
        if isinstance(value, int) and not 0 <= value <= (1 << 40 if key == "heard" else _NUMBER_MOST):
            raise ValueError(f"{key} is out of its range")
    return Neighbor(**body)


def document(neighbor: Neighbor) -> Json:
    """The inverse of ``parsed``."""
    return asdict(neighbor)


def read(file: Path = FILE) -> Mapping[str, Neighbor]:
    """The neighbors by their PF's PCI address; none if the file is missing, unreadable, or of another boot."""
    with suppress(CniError, LookupError, TypeError, ValueError, AttributeError):
        body = durable.read(file) or {}
        if body.get("boot") == durable.boot_id():
            return {str(pf): parsed(one) for pf, one in body["neighbors"].items()}
    return {}


def write(neighbors: Mapping[str, Neighbor], file: Path = FILE) -> None:
    """Keep the neighbors for this boot.  Raises IoFailure, InvalidConfig."""
    body = {"boot": durable.boot_id(), "neighbors": {pf: document(one) for pf, one in neighbors.items()}}
    durable.write(file, body)


def forget(file: Path = FILE) -> None:
    """Remove the file, because no process hears the neighbors any more.  Raises IoFailure."""
    durable.remove(file)


_TYPES: Final = {one.name: one.type for one in fields(Neighbor)}
