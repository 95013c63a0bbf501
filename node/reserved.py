"""The interfaces that the host cannot spare, and why: a default route leaves by them, or Open vSwitch has them; and
what the host would lose with others."""

from collections.abc import Iterator
from contextlib import suppress
from socket import if_indextoname
from typing import Final

from cni.kernel import budget, in_use, rtnl, sysfs, uplinks
from cni.kernel.netlink import answers_strictly

# The interface that stands for Open vSwitch in the kernel (dpif-netlink.c): the ports of all its bridges are below it.
OVS: Final = "ovs-system"


def interfaces(root: str) -> dict[str, str]:
    """Why the host needs an interface, by its name: the default route leaves by it, or by one over it.

    So is each port of Open vSwitch.  Which of its bridges leads out by which port only its own program knows, so a
    default route by a bridge of its may leave by any of them.  Raises OSError.
    """
    budget.begin()
    # guard below: a-port (all_below(root, OVS) -> ())
    ports = dict.fromkeys(all_below(root, OVS), "Open vSwitch has its interface and may carry the host's traffic by it")
    routes = {
        name: f"the host's default route leaves by {uplink}"
        for uplink in uplinks.of_default_routes()
        for name in (uplink, *all_below(root, uplink))  # guard: below-it (root)
    }
    return ports | routes


def in_use_by_the_host() -> dict[str, str]:
    """What the host would lose with an interface, by its name: addresses, and routes by it.  Raises OSError."""
    with rtnl.open_in() as asking:
        answers_strictly(asking.sock)
        by_index = in_use.of_all(asking)
    found = dict[str, str]()
    for index, why in by_index.items():
        with suppress(OSError):  # it has just gone
            found[if_indextoname(index)] = why
    return found


def all_below(root: str, netdev: str) -> Iterator[str]:
    """The interfaces below a bond, a VLAN or a bridge, and those below these."""
    for name in sysfs.names(f"{root}/class/net/{netdev}"):
        if name.startswith("lower_"):
            yield name.removeprefix("lower_")
            yield from all_below(root, name.removeprefix("lower_"))
