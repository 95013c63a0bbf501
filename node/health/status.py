"""A device's health, from its observed state and for how long it lasts; pure.

Effects of a pod's use do not count.  A pod may set its interface down, and a VF that is not set up has no carrier.  So
a VF's link is that of its PF, and an interface counts only while it is in the host's namespace and set up.  A shared
device stays on the host, where no pod can set it down, so its interface, or its RDMA port, must be up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from base.kernel.links import Link
from hardware.model import Device, Kind
from node.model import Settings

NO_DRIVER: Final = "it has no driver"
FIRMWARE: Final = "the firmware of "  # a reason's beginning
NEEDED: Final = "the host needs it: "  # another
ACTIVE: Final = "ACTIVE"  # a port's state in /sys/class/infiniband/*/ports/*/state, without its number


@dataclass(frozen=True)
class Facts:
    """The kernel's present state.

    - ``links``: the links of the host's namespace, by name.
    - ``failed``: the addresses of devices with failed firmware.
    - ``ports``: the states of an RDMA device's ports ("ACTIVE", "DOWN"); none if it is not in the host's namespace.
    - ``rdma_of``: the names of the RDMA devices at a PCI address.
    """

    links: Mapping[str, Link]
    failed: frozenset[str]
    ports: Callable[[str], Sequence[str]]
    rdma_of: Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class HealthKey:
    """A device as a resource uses it: the link of a shared one must be up, that of another may be down in a pod."""

    id: str
    shared: bool


@dataclass(frozen=True, slots=True)
class Observation:
    """A device's faults at one moment; empty if it has none.

    - ``lost``: why it is unusable, which counts at once.
    - ``down``: why it has no link, which counts after a time.
    """

    lost: str = ""
    down: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """A device's health as reported to kubelet.

    - ``lost``, ``down``: why it is unhealthy, as in an Observation.
    - ``turned``: when the link's state began to differ from ``down``, in seconds of the monotonic clock; None while it
      agrees.
    """

    lost: str = ""
    down: str = ""
    turned: float | None = None

    @property
    def reason(self) -> str:
        """Why it is unhealthy; empty if it is healthy."""
        return self.lost or self.down


_WELL: Final = Health()  # thousands of devices share it


def step(before: Health | None, seen: Observation, now: float, settings: Settings) -> Health:
    """A device's health after an observation.

    A device without earlier observations counts as up until now.  So kubelet does not refuse pods their devices after a
    reboot because a link takes seconds to come up.
    """
    before = before or _WELL
    if bool(seen.down) == bool(before.down):
        return Health(seen.lost, before.down) if seen.lost or before.down else _WELL
    turned = now if before.turned is None else before.turned
    wait = settings.down_after if seen.down else settings.up_after
    if now < turned + wait:
        return Health(seen.lost, before.down, turned)
    return Health(seen.lost, f"{seen.down} since {wait:g} s" if seen.down else "")


def due(health: Health, settings: Settings) -> float | None:
    """When the health may change without an event, by the monotonic clock; None if never."""
    if health.turned is None:
        return None
    return health.turned + (settings.up_after if health.down else settings.down_after)


def observe(device: Device, facts: Facts, *, shared: bool) -> Observation:
    """The faults of an existing device."""
    if shared:
        return Observation(_lost(device, facts), _own(device, facts))
    # A pod would take it from the host, and ADD refuses that.  A DHCP client of the host may bring it an address.
    needed = f"{NEEDED}{device.needed}" if device.needed else ""
    return Observation(_lost(device, facts) or needed, _link(device, facts))


def _lost(device: Device, facts: Facts) -> str:
    if device.kind is not Kind.NETDEV and not device.driver:
        return NO_DRIVER
    for address in (device.id, device.pf):
        if address in facts.failed:
            return f"{FIRMWARE}{address} has failed (devlink health show)"
    return ""


def _own(device: Device, facts: Facts) -> str:
    """Why a shared device has no link."""
    if states := {rdma.name: found for rdma in device.rdma if (found := facts.ports(rdma.name))}:
        return _inactive(states)
    links = [facts.links[name] for name in device.netdevs if name in facts.links]
    if links and not any(link.up for link in links):
        return f"{links[0].name} is set down (ip link set {links[0].name} up)"
    return _no_carrier(links)


def _link(device: Device, facts: Facts) -> str:
    """Why an exclusive device has no link."""
    if device.link_type == "infiniband":
        return _inactive({name: facts.ports(name) for name in facts.rdma_of(device.pf)})
    names = (device.pf_netdev,) if device.kind in (Kind.VF, Kind.SF) else device.netdevs
    return _no_carrier([facts.links[name] for name in names if name in facts.links])


def _no_carrier(links: Sequence[Link]) -> str:
    """Why a device with these interfaces has no link.  An interface that is set down proves nothing."""
    up = [link for link in links if link.up]
    return f"{up[0].name} has no carrier" if up and not any(link.carrier for link in up) else ""


def _inactive(states: Mapping[str, Sequence[str]]) -> str:
    """Why RDMA devices with these ports have no link."""
    ports = [(name, number, state) for name, found in states.items() for number, state in enumerate(found, 1)]
    if not ports or any(state == ACTIVE for _, _, state in ports):
        return ""
    name, number, state = ports[0]
    return f"port {number} of {name} is {state}"
