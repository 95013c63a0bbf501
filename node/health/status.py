"""Whether a device is healthy, from what is seen of it and for how long; pure.

What only tells that a pod uses the device does not count.  A pod may set its interface down, and a VF that nobody set
up has no carrier.  So a VF is as good as its PF's link, and an interface counts only while it is in the host's
namespace and set up.  A shared device stays on the host, where no pod can set it down: of that one the interface, or
the RDMA port, has to be up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from base.kernel.links import Link
from hardware.model import Device, Kind

ACTIVE: Final = "ACTIVE"  # a port's state in /sys/class/infiniband/*/ports/*/state, without its number


@dataclass(frozen=True)
class Facts:
    """What the kernel says now.

    - ``links``: the links of the host's namespace, by name.
    - ``failed``: the addresses of the devices whose firmware has failed.
    - ``ports``: the states of an RDMA device's ports ("ACTIVE", "DOWN"); none if it is not in the host's namespace.
    - ``rdma_of``: the names of the RDMA devices of the function at a PCI address.
    """

    links: Mapping[str, Link]
    failed: frozenset[str]
    ports: Callable[[str], Sequence[str]]
    rdma_of: Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class Observation:
    """What is wrong with a device now, each empty where nothing is.

    - ``lost``: why it cannot be used at all, which counts at once.
    - ``down``: why it has no link, which counts once it lasts.
    """

    lost: str = ""
    down: str = ""


@dataclass(frozen=True)
class Health:
    """What kubelet is told of a device.

    - ``lost``, ``down``: why it is unhealthy, as in an Observation.
    - ``turned``: since when the link is no longer as ``down`` says, in seconds of the monotonic clock; None if it is.
    """

    lost: str = ""
    down: str = ""
    turned: float | None = None

    @property
    def reason(self) -> str:
        """Why it is unhealthy; empty if it is healthy."""
        return self.lost or self.down


@dataclass(frozen=True)
class Patience:
    """How many seconds a link stays down, or up, before it counts."""

    down_after: float
    up_after: float


def step(before: Health | None, seen: Observation, now: float, patience: Patience) -> Health:
    """A device's health after an observation.  A device that is seen for the first time has had a link until now.

    So what pods have had before a reboot is not refused to them because a link takes seconds to come up.
    """
    before = before or Health()
    if bool(seen.down) == bool(before.down):
        return Health(seen.lost, before.down)
    turned = now if before.turned is None else before.turned
    wait = patience.down_after if seen.down else patience.up_after
    if now < turned + wait:  # guard: patience
        return Health(seen.lost, before.down, turned)
    return Health(seen.lost, f"{seen.down} since {wait:g} s" if seen.down else "")


def due(health: Health, patience: Patience) -> float | None:
    """When the next step has something to say without an event; None if never."""
    if health.turned is None:
        return None
    return health.turned + (patience.up_after if health.down else patience.down_after)


def observe(device: Device, facts: Facts, *, shared: bool) -> Observation:
    """What is wrong with a device that is there."""
    return Observation(_lost(device, facts), _own(device, facts) if shared else _link(device, facts))


def _lost(device: Device, facts: Facts) -> str:
    if device.kind is not Kind.NETDEV and not device.driver:
        return "it has no driver"
    for address in (device.id, device.pf):
        if address in facts.failed:
            return f"the firmware of {address} has failed (devlink health show)"
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
    """Why a device that a pod has, or could have, for itself has no link."""
    if device.link_type == "infiniband":
        return _inactive({name: facts.ports(name) for name in facts.rdma_of(device.pf)})
    # guard below: what-a-pod-has = (*device.netdevs, device.pf_netdev)
    names = (device.pf_netdev,) if device.kind in (Kind.VF, Kind.SF) else device.netdevs
    return _no_carrier([facts.links[name] for name in names if name in facts.links])


def _no_carrier(links: Sequence[Link]) -> str:
    """Why a device with these interfaces has no link.  One that is set down does not say."""
    up = [link for link in links if link.up]  # guard: set-down-says-nothing = list(links)
    return f"{up[0].name} has no carrier" if up and not any(link.carrier for link in up) else ""


def _inactive(states: Mapping[str, Sequence[str]]) -> str:
    """Why RDMA devices with these ports have no link."""
    ports = [(name, number, state) for name, found in states.items() for number, state in enumerate(found, 1)]
    if not ports or any(state == ACTIVE for _, _, state in ports):
        return ""
    name, number, state = ports[0]
    return f"port {number} of {name} is {state}"
