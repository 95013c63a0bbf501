"""The counters of RDMA ports: bytes, packets and errors, under the names of each driver.

Bytes are in one of three places.  ``counters/port_*_data`` counts words of four bytes (InfiniBand 16.1.3.5), on mlx5
also for RoCE and per VF.  Other drivers count bytes in hw_counters.  soft-RoCE of older kernels counts none: then the
interface below it counts, which includes traffic other than RDMA.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.protocol import location
from base.state import journal
from base.state.record import Record
from hardware import ports, rdma_users
from hardware.ports import Owner, Port, every
from hardware.rdma_users import Uses
from ipam.pool import interface_id

# Drivers' names of received and sent data, and the bytes per count.
_BYTES: Final = (
    (("port_rcv_data", "port_xmit_data"), 4),  # mlx5, mlx4, hfi1
    (("rx_bytes_cnt", "tx_bytes_cnt"), 1),  # erdma, in the kernel
    (("hw_rx_bytes_cnt", "hw_tx_bytes_cnt"), 1),  # erdma, the vendor's
    (("rx_bytes", "tx_bytes"), 1),  # bnxt_re, efa
    (("rcvd_bytes", "sent_bytes"), 1),  # rxe of new kernels
)
_PACKETS: Final = (
    ("port_rcv_packets", "port_xmit_packets"),
    ("rx_packets_cnt", "tx_packets_cnt"),
    ("hw_rx_packets_cnt", "hw_tx_packets_cnt"),
    ("rx_pkts", "tx_pkts"),
    ("rcvd_pkts", "sent_pkts"),  # rxe
)
# Counters that indicate errors; others count work, or normal events (CNPs, RNR answers).
_ERRORS: Final = re.compile(
    r"out_of_sequence|out_of_seq_request|packet_seq_err|rcvd_seq_err|implied_nak_seq_err|local_ack_timeout_err"
    r"|rnr_nak_retry_err|retry_exceeded_err|retry_rnr_exceeded_err|completer_retry_err|send_err|out_of_buffer"
    r"|roce_adp_retrans(_to)?|rx_icrc_encapsulated|(req|resp)_cqe_error|resp_remote_access_errors|req_transport_retries_exceeded"
    r"|port_rcv_errors|port_rcv_remote_physical_errors|port_xmit_discards|symbol_error|link_downed|link_error_recovery"
    r"|local_link_integrity_errors|excessive_buffer_overrun_errors|VL15_dropped"
    r"|(hw_)?((rx|tx)_)?(disable_drop|bps_limit_drop|pps_limit_drop)_cnt|(rx|tx)_.*_(errors|discards|drops)"
)


@dataclass(frozen=True)
class Totals:
    """The counters of a port: bytes, packets, and errors by name.

    - ``netdev``: the interface that counted the bytes, if the RDMA device does not.
    - ``known``: whether bytes are counted at all.
    """

    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_packets: int = 0
    tx_packets: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    netdev: str = ""
    known: bool = True


def read(port: Port, root: Path) -> Totals:
    """The port's counters now.  ``root`` is the /sys that may show its interface."""
    found = port.counters()
    errors = {name: value for name, value in sorted(found.items()) if _ERRORS.fullmatch(name)}
    rx_packets, tx_packets = _pair(found, _PACKETS) or (0, 0)
    for names, unit in _BYTES:
        if pair := _pair(found, [names]):
            return Totals(pair[0] * unit, pair[1] * unit, rx_packets, tx_packets, errors)
    netdev = netdev_of(port, root)
    if not netdev:
        return Totals(0, 0, rx_packets, tx_packets, errors, known=False)
    statistics = root / "class/net" / netdev / "statistics"
    rx, tx = _number(statistics / "rx_bytes"), _number(statistics / "tx_bytes")
    return Totals(rx, tx, rx_packets, tx_packets, errors, netdev)


def _pair(found: Mapping[str, int], names: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
    """The first pair of counters that both exist."""
    return next(((found[rx], found[tx]) for rx, tx in names if rx in found and tx in found), None)


def netdev_of(port: Port, root: Path) -> str:
    """The port's interface, if it is in the namespace of that /sys; else empty.

    An RDMA device names its interface in any namespace, and this namespace may have another one of that name.  So its
    MAC must match the GUID that the device derived from it (addrconf_addr_eui48).
    """
    name = sysfs.line(f"{port.path}/gid_attrs/ndevs/0")
    mac = sysfs.line(root / "class/net" / name / "address") if name and "/" not in name else ""
    guid = sysfs.line(f"{port.path}/gids/0").replace(":", "")[16:]
    return name if mac and guid == interface_id(mac).hex() else ""


def _number(path: Path) -> int:
    text = sysfs.line(path)
    return int(text) if text.isdecimal() else 0


# A port's device by name, and its number.
Name = tuple[str, str]


@dataclass(frozen=True)
class Seen:
    """A port at one moment: its state in the kernel's words ("ACTIVE"), its owner, and its counters."""

    state: str
    owner: Owner
    totals: Totals

    @property
    def pod(self) -> str:
        """The pod as namespace/name, or by name alone; empty for none."""
        return "/".join(filter(None, self.owner))


@dataclass(frozen=True)
class Sample:
    """All ports, and the time of reading in seconds of the monotonic clock.

    - ``wanted``: the requested devices, ports and pods; empty for all.
    - ``uses``: the users of the devices in our namespace.
    """

    at: float
    ports: Mapping[Name, Seen]
    wanted: Set[str] = frozenset()
    uses: Uses = field(default_factory=dict)

    @property
    def shown(self) -> Mapping[Name, Seen]:
        """The requested ports.  The others are needed for comparison."""
        return {
            name: seen
            for name, seen in self.ports.items()
            if not self.wanted or not self.wanted.isdisjoint(self._words(name, seen))
        }

    @property
    def shown_uses(self) -> Uses:
        """The users of the requested ports' devices, by device and name."""
        devices = {device for device, _ in self.shown}
        return {key: self.uses[key] for key in sorted(self.uses) if key[0] in devices}

    def _words(self, name: Name, seen: Seen) -> set[str]:
        """Return the names that select the port: its own, and those of the pods that own or use its device."""
        users = [user for device, user in self.uses if device == name[0]]
        pods = {word for user in users for word in (user.pod, user.name, user.uid)}
        return {name[0], "/".join(name), seen.owner[1], seen.pod, *pods} - {""}


def sample(wanted: Set[str], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Sample:
    """Read all ports.  ``remark`` receives a sentence for each thing that cannot be read."""
    records = [record for _, record in journal.files(location.state_dir()) if record]
    found = {
        (port.rdma_dev, port.number): Seen(port.state.rpartition(": ")[2], port.owner, _totals(port, records, remark))
        for port in every(records, remark, root)
    }
    # The kernel knows only this machine's devices.
    uses = rdma_users.uses(records, remark) if root == sysfs.SYS else {}
    return Sample(time.monotonic(), found, wanted, uses)


def _totals(port: Port, records: Iterable[Record], remark: Callable[[str], None]) -> Totals:
    """The port's counters.  A pod's soft-RoCE device uses an interface in the pod, even if the host sees the device."""
    found = read(port, port.root)
    for record in records:
        if not found.known and port.rdma_dev in record.rdma_devs:
            with ports.sysfs_of(record, remark) as root:
                found = read(port, root) if root else found
    return found
