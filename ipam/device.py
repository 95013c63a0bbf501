"""Which device an attachment is over, by its configuration and /sys; asked only if there are rails.

An IPAM plugin is told the main plugin's configuration, whichever plugin that is, and nothing else.
"""

from pathlib import Path
from typing import Any

from base.kernel import sysfs
from base.protocol import arguments, spec
from base.protocol.spec import Config
from ipam.rails import Device

# Plugins that take a master, by default the one of the default route, and ignore the device that Multus adds.
_OVER_A_MASTER = {"macvlan", "ipvlan"}


def of(conf: Config, root: Path = sysfs.SYS) -> Device:
    """What is known of the device; empty if the configuration names none.  Raises InvalidConfig."""
    # host-device has a device, which is moved, and other kinds a master, which stays; a rail names either.
    named = "device" if "host-device" in (conf.get("kind"), conf.get("type")) else "master"
    master, pf = _interface(conf.get(named)), _interface(conf.get("pf"))
    if master:
        under = [] if conf.get("linkInContainer") else sysfs.functions_under(master, root)
        # A bond's packets leave by several devices, so only its name says which rail it is on.
        return {"master": [master], **(_behind(under[0], root) if len(under) == 1 else {})}
    device = arguments.chosen_device(conf, "deviceID", "pciBusID")
    if isinstance(device, str) and device and not _defaults_to_a_master(conf):
        # A scalable function is a part of a PCI function.
        function = sysfs.function(sysfs.pci_of(device, root) or device.lower(), root)
        return _behind(function, root) if function else {"pciAddress": [device.lower()]}
    if pf:
        function = sysfs.function(sysfs.address_of(pf, root), root)
        return {**(_behind(function, root) if function else {}), "pf": [pf]}
    return {}


def _behind(function: sysfs.Function, root: Path) -> Device:
    """What is known of a function; a VF is known by its PF too."""
    pf = sysfs.function(function.pf, root) if function.pf else function
    node = sysfs.numa_node(function.address, root)
    return {
        **({"pf": pf.netdevs} if pf and pf.netdevs else {}),
        "pciAddress": [function.address, *([function.pf] if function.pf else [])],
        **({"numaNode": [node]} if node >= 0 else {}),
    }


def _defaults_to_a_master(conf: Config) -> bool:
    return not _OVER_A_MASTER.isdisjoint(str(conf.get(key)) for key in ("kind", "type")) or "mode" in conf


def _interface(name: Any) -> str:
    return name if isinstance(name, str) and not spec.bad_ifname(name) else ""
