"""The node's devices for its pods, from sysfs: PCI functions, scalable functions, and interfaces of software.

A pod's device is listed like all others: ``Memory`` or its PF has the values that sysfs hides meanwhile.  A pod's
software interface is not listed, because sysfs shows it no more than a deleted one.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from base.kernel import rtnl, sysfs
from base.protocol.errors import CniError
from base.protocol.location import STATE_DIR
from base.state import durable
from hardware import users
from hardware.model import Device, Kind, RdmaDevice

MEMORY: Final = Path(STATE_DIR, "node", "devices.json")
_NETWORK: Final = "0x02"  # PCI's class of network controllers; 0x0207 is InfiniBand's
_ACCELERATOR: Final = "0x12"
_INFINIBAND: Final = "0x0207"
_LINK_TYPES: Final = {"1": "ether", "32": "infiniband"}  # ARPHRD_*
_NONE: Final = frozenset[int]()  # each new one takes 216 bytes
_VDPA: Final = {"vhost_vdpa": "vhost", "virtio_vdpa": "virtio"}
_VIRTUAL = "virtual"  # the kernel's parent for devices of software


@dataclass(frozen=True, slots=True)
class Seen:
    """A device's interface names, its ports' partition keys, and the altnames of its interfaces."""

    names: tuple[str, ...] = ()
    pkeys: tuple[int, ...] = ()
    altnames: tuple[str, ...] = ()


class Memory:
    """The last known properties of each device on the host, for the time in which a pod holds it and sysfs hides it.

    A file also keeps them, so a device stays in its resource across a restart.  An entry is valid for one incarnation
    of the device (base.kernel.sysfs.incarnation) under one driver.  A device that moves to vfio-pci loses its
    interface, while a pod's device keeps its driver.
    """

    def __init__(self, file: Path | None, *, writes: bool) -> None:
        self._file, self._writes = file, writes
        self._before = _read_memory(file) if file else {}
        self._now = dict[str, tuple[str, Seen]]()

    def complete(self, device: str, incarnation: int, driver: str, seen: Seen) -> Seen:
        """What is seen of the device now; or what was seen last, if its interfaces are missing now."""
        life = f"{incarnation} {driver}"
        if not seen.names:
            before, last = self._before.get(device, ("", Seen()))
            seen = last if before == life else seen
        if seen.names:
            now, known = (life, seen), self._before.get(device)
            # The last scan's object if nothing changed, so that two scans never occupy memory together.
            self._now[device] = _, seen = known if known == now else now
        return seen

    def keep(self) -> None:
        """Forget the devices that were not completed since the last call, because they are gone; write the changes.  A
        failure to write is ignored: it loses only names, and only after the next start."""
        if self._file and self._writes and self._now != self._before:
            with suppress(CniError):
                devices = {device: [life, seen.names, seen.pkeys] for device, (life, seen) in self._now.items()}
                # An older version reads the entries of devices as they are.
                more = {device: seen.altnames for device, (_, seen) in self._now.items() if seen.altnames}
                durable.write(self._file, {"boot": durable.boot_id(), "devices": devices, "altnames": more})
        self._before, self._now = self._now, {}


def _read_memory(file: Path) -> dict[str, tuple[str, Seen]]:
    """The file's entries of this boot; none if the file is unreadable or older."""
    with suppress(CniError, LookupError, TypeError, ValueError, AttributeError):
        body = durable.read(file) or {}
        if body.get("boot") == durable.boot_id():
            more = body.get("altnames", {})
            return {
                device: (life, Seen(tuple(names), tuple(pkeys), tuple(more.get(device, ()))))
                for device, (life, names, pkeys) in body["devices"].items()
            }
    return {}


def devices(root: Path = sysfs.SYS, memory: Path | None = None) -> tuple[Device, ...]:
    """All devices of this moment: PFs, then VFs, SFs and interfaces of software, each in the order of their ids.

    What a running ``hpn node`` remembers of pods' devices is read from its ``memory``, and nothing is written.  Raises
    OSError if the kernel does not report the default route.
    """
    return Inventory(root, memory, writes=False).devices()


class Inventory:
    """Repeated scans, cheaper than the first: of a known device, only what can change is read."""

    def __init__(self, root: Path = sysfs.SYS, memory: Path | None = None, *, writes: bool = True) -> None:
        self._root = f"{root}"
        self._memory = Memory(memory, writes=writes)
        # A device's incarnation, and the device of the last scan: some fields stay the same for that lifetime.
        self._known = dict[str, tuple[int, Device | None]]()
        self._last = dict[str, Device]()

    def devices(self) -> tuple[Device, ...]:
        """As ``devices``."""
        scan = _Scan(self._root, self._memory)
        found = dict[str, Device]()
        self._read_buses(scan)
        kinds = {address: _ORDER[known.kind] for address, (_, known) in self._known.items() if known}
        # A VF's device names its PF's interface, so PFs come first.
        for address in sorted(kinds, key=lambda one: (kinds[one], one)):
            incarnation, known = self._known[address]
            if known:
                found[address] = self._same(scan.device(known, incarnation, found.get(known.pf)))
                self._known[address] = incarnation, found[address]  # at once, or thousands take memory twice
        software = [self._same(device) for device in scan.software(found)]
        self._memory.keep()
        devices = [scan.with_use(device) for device in (*found.values(), *software)]
        self._last = {device.id: self._same(device) for device in devices}
        self._known = {address: (life, self._last.get(address)) for address, (life, _) in self._known.items()}
        return tuple(self._last.values())

    def _same(self, device: Device) -> Device:
        """The last scan's object if nothing changed, so that two scans never occupy memory together."""
        last = self._last.get(device.id)
        return last if last == device else device

    def _read_buses(self, scan: "_Scan") -> None:
        """Read the devices on the two buses; known ones stay as they were."""
        before, self._known = self._known, {}
        for bus, read in (("pci", scan.read_function), ("auxiliary", scan.read_auxiliary)):
            for address, incarnation in _entries(f"{self._root}/bus/{bus}/devices"):
                known = before.get(address)
                if known is None or known[0] != incarnation or scan.may_differ(address, known[1]):
                    known = incarnation, read(address)
                self._known[address] = known


_ORDER: Final = {kind: order for order, kind in enumerate(Kind)}


class _Scan:
    """One scan of sysfs, with the data that all devices share."""

    def __init__(self, root: str, memory: Memory) -> None:
        self.root = root
        self._memory = memory
        self._rdma = rdma_by_device(root)
        self._vdpa = _vdpa(root)
        self._reserved = users.reserved_interfaces(root)
        self._used = users.in_use_by_the_host()
        self._altnames = rtnl.altnames()
        # The numbers of a PF's VFs.
        self._numbers = cache(lambda pf: {vf: number for number, vf in enumerate(sysfs.vfs(pf, Path(root)))})

    def read_function(self, address: str) -> Device | None:
        """A PCI function's fixed fields; None if it is neither a NIC nor an accelerator."""
        path = f"{self.root}/bus/pci/devices/{address}"
        code = sysfs.line(f"{path}/class")
        if not code.startswith((_NETWORK, _ACCELERATOR)):
            return None
        pf = sys.intern(sysfs.link(f"{path}/physfn"))
        is_nic = code.startswith(_NETWORK)
        return Device(
            address,
            (Kind.VF if pf else Kind.PF) if is_nic else Kind.ACCELERATOR,
            vendor=_hexadecimal(f"{path}/vendor"),
            product=_hexadecimal(f"{path}/device"),
            link_type="infiniband" if code.startswith(_INFINIBAND) else "ether" if is_nic else "",
            pf=pf or address,
            index=self._numbers(pf).get(address, -1) if pf else -1,
            numa=sysfs.number(f"{path}/numa_node"),
            acpi_index=sysfs.line(f"{path}/acpi_index"),
        )

    def read_auxiliary(self, name: str) -> Device | None:
        """The fixed fields of a device of the auxiliary bus; None if it is a part of a driver, as most are."""
        path = f"{self.root}/bus/auxiliary/devices/{name}"
        if name.split(".")[1:2] != ["sf"] and name not in self._rdma:
            return None
        pf = os.path.basename(os.path.dirname(os.path.realpath(path)))
        pci = f"{self.root}/bus/pci/devices/{pf}"
        return Device(
            name,
            Kind.SF,
            vendor=_hexadecimal(f"{pci}/vendor"),
            product=_hexadecimal(f"{pci}/device"),
            link_type="ether",
            pf=pf,
            index=sysfs.number(f"{path}/sfnum"),
            numa=sysfs.number(f"{pci}/numa_node"),
        )

    def may_differ(self, address: str, known: Device | None) -> bool:
        """Whether the device may have been read before it was complete.  The kernel announces a VF before it makes the
        links between the VF and its PF (pci_iov_add_virtfn); an RDMA device appears with its driver."""
        if known is None:
            return address in self._rdma
        return known.index < 0 if known.kind is Kind.VF else sysfs.is_vf(address, Path(self.root))

    def device(self, fixed: Device, incarnation: int, pf: Device | None) -> Device:
        """The device's current state; ``pf`` is a VF's or SF's PF, None if not visible."""
        path = f"{self.root}/bus/{'auxiliary' if fixed.kind is Kind.SF else 'pci'}/devices/{fixed.id}"
        driver, holder = sys.intern(sysfs.link(f"{path}/driver")), path
        if driver == "virtio-pci":
            holder = f"{path}/{sysfs.with_netdev(fixed.id, Path(self.root))}"
        # The uplink's interface first, without a switchdev PF's representors of its VFs.
        netdevs = tuple(sysfs.own_netdevs(sysfs.names(f"{holder}/net"), Path(self.root)))
        link_type = self._link_type(netdevs) or (pf.link_type if pf else "") or fixed.link_type
        pkeys = _pkeys(path) if netdevs and link_type == "infiniband" else ()
        seen = self._memory.complete(fixed.id, incarnation, driver, Seen(netdevs, pkeys, self._altnames_of(netdevs)))
        return replace(
            fixed,
            driver=driver,
            netdevs=netdevs,
            names=seen.names,
            altnames=seen.altnames,
            link_type=link_type,
            rdma=self._rdma_of(os.path.basename(holder), *netdevs),
            pf_netdev=next(iter(pf.names if pf else seen.names if fixed.kind is Kind.PF else ()), ""),
            pf_altnames=pf.altnames if pf else seen.altnames if fixed.kind is Kind.PF else (),
            vfs=max(sysfs.number(f"{path}/sriov_numvfs"), 0) if fixed.kind is Kind.PF else 0,
            pkeys=frozenset(seen.pkeys) if seen.pkeys else _NONE,
            vdpa=self._vdpa.get(fixed.id, ""),
            reserved=next((why for name in netdevs if (why := self._reserved.get(name))), ""),
            used="",
        )

    def software(self, found: Mapping[str, Device]) -> Iterator[Device]:
        """The interfaces that belong to no device of ``found`` and can carry a pod's interface.  The loopback
        interface, tunnels and ports of a bridge are left out."""
        owners = {name: device for device in found.values() for name in device.netdevs}
        for name in sysfs.names(f"{self.root}/class/net"):
            path = f"{self.root}/class/net/{name}"
            if name in owners:
                continue
            inside = sysfs.names(path)
            for lower in (one.removeprefix("lower_") for one in inside if one.startswith("lower_")):
                self._used.setdefault(lower, f"{name} of the host is over it")
            # Its name is the device's ID, which must be unique, and which kubelet accepts only as text.
            if name in found or not (name.isascii() and name.isprintable()):
                continue
            if not (link_type := self._link_type((name,))):
                continue
            # A representor's device is its PF.
            of = os.path.realpath(f"{path}/device").split("/") if "device" in inside else ()
            if "brport" in inside or any(part in found for part in of):
                continue
            below = [owners[lower] for lower in users.all_below(self.root, name) if lower in owners]
            yield Device(
                name,
                Kind.NETDEV,
                driver=sysfs.link(f"{path}/device/driver"),
                netdevs=(name,),
                names=(name,),
                altnames=self._altnames_of((name,)),
                link_type=link_type,
                rdma=tuple(dict.fromkeys((*self._rdma_of(name), *(r for device in below for r in device.rdma)))),
                numa=next((device.numa for device in below), -1),
                reserved=self._reserved.get(name, ""),
            )

    def with_use(self, device: Device) -> Device:
        """The device, with what the host would lose with it.  Call it after all interfaces that may be over it were
        seen."""
        used = next((why for name in device.netdevs if (why := self._used.get(name))), "")
        return replace(device, used=used) if used else device

    def _rdma_of(self, *names: str) -> tuple[RdmaDevice, ...]:
        """The RDMA devices of a device and of its interfaces: soft-RoCE belongs to an interface, even to a NIC's."""
        return tuple(rdma for name in names for rdma in self._rdma.get(name, ()))

    def _altnames_of(self, netdevs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(altname for name in netdevs for altname in self._altnames.get(name, ()))

    def _link_type(self, netdevs: tuple[str, ...]) -> str:
        return next((_LINK_TYPES.get(sysfs.line(f"{self.root}/class/net/{n}/type"), "") for n in netdevs), "")


def _entries(folder: str) -> Iterator[tuple[str, int]]:
    """The devices of a bus, each with the inode of its link, which no other device at this address shares."""
    with suppress(OSError), os.scandir(folder) as entries:
        yield from ((entry.name, entry.inode()) for entry in entries)


def _vdpa(root: str) -> dict[str, str]:
    """PCI function -> its vDPA device's type."""
    folder, found = f"{root}/bus/vdpa/devices", dict[str, str]()
    for name in sysfs.names(folder):
        parent = os.path.basename(os.path.dirname(os.path.realpath(f"{folder}/{name}")))
        found[parent] = _VDPA.get(sysfs.link(f"{folder}/{name}/driver"), "")
    return found


def _pkeys(path: str) -> tuple[int, ...]:
    """The first partition key of each port: the key of the device's IPoIB interface, and of RDMA-CM."""
    ports = [f"{path}/infiniband/{d}/ports/{n}" for d in sysfs.names(f"{path}/infiniband")
             for n in sysfs.names(f"{path}/infiniband/{d}/ports")]  # fmt: skip
    return tuple(int(key, 16) & 0x7FFF for port in ports if (key := sysfs.line(f"{port}/pkeys/0")))


def _hexadecimal(path: str) -> str:
    return sys.intern(sysfs.line(path).removeprefix("0x"))  # thousands of devices share one


def rdma_by_device(root: str) -> Mapping[str, tuple[RdmaDevice, ...]]:
    """The RDMA devices of each device, by its name on its bus ("0000:3b:00.2", "mlx5_core.sf.4", "virtio0").

    /sys/class/infiniband lists only the devices of the host's namespace.  infiniband_verbs and infiniband_mad ignore
    namespaces, so they list a pod's device too, under its name in the pod.

    A soft-RoCE device has no device below it, so it is under its interface's name.  Without the module ib_uverbs, no
    device has nodes, and pods' devices are not visible.
    """
    here = f"{root}/class/infiniband"
    # By parent and name: some kernels allow one name for devices in different namespaces.
    devices = {(_parent(f"{here}/{name}"), name): "" for name in sysfs.names(here)}
    devices |= {(parent, name): node for parent, name, node in _rdma_nodes(f"{root}/class/infiniband_verbs", "uverbs")}
    mads = defaultdict[tuple[str, str], list[str]](list)
    for parent, name, node in _rdma_nodes(f"{root}/class/infiniband_mad", ""):
        mads[parent, name].append(node)
    found = defaultdict[str, list[RdmaDevice]](list)
    for parent, name in sorted(devices):
        nodes = mads[parent, name]
        umad, issm = (tuple(n for n in nodes if n.rpartition("/")[2].startswith(kind)) for kind in ("umad", "issm"))
        owner = sysfs.line(f"{here}/{name}/parent") if parent == _VIRTUAL else parent
        found[owner].append(RdmaDevice(name, devices[parent, name], umad, issm))
    return {owner: tuple(theirs) for owner, theirs in found.items()}


def _rdma_nodes(folder: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Each character device of a class: its parent device, its RDMA device's name, and its path."""
    for name in sorted(sysfs.names(folder), key=sysfs.natural):
        if name.startswith(prefix) and (device := sysfs.line(f"{folder}/{name}/ibdev")):
            yield _parent(f"{folder}/{name}"), device, f"/dev/infiniband/{name}"


def _parent(path: str) -> str:
    """The link leads to .../0000:3b:00.2/infiniband_verbs/uverbs0."""
    try:
        return os.readlink(path).split("/")[-3]
    except (OSError, IndexError):
        return ""
