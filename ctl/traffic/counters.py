"""What one RDMA port has counted since the driver was loaded: octets, packets, errors, under whichever names its driver
gives them.

Octets are in one of three places.  ``counters/port_*_data`` counts words of four octets (InfiniBand 16.1.3.5), on mlx5
also for RoCE and per VF.  Other drivers count octets in hw_counters.  soft-RoCE of older kernels counts none.  Then the
interface below it says how much it carried, and that is more than RDMA where it carries anything else.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.kernel import sysfs
from base.state import journal, places
from base.state.record import Record
from hardware import ports
from hardware.ports import Owner, Port, every
from ipam.pool import interface_id

# Of received and of sent octets: names that drivers use, and the octets in one of what they count.
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
# What is wrong when it grows; the rest counts work, or what is usual (CNPs, RNR answers that were waited for).
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
    """What a port has counted: octets, packets, and errors by their names.

    - ``netdev``: the interface that counted the octets, where the RDMA device does not.
    - ``known``: whether anybody counts octets.
    """

    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_packets: int = 0
    tx_packets: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    netdev: str = ""
    known: bool = True


def read(port: Port, root: Path) -> Totals:
    """What the port has counted by now.  ``root`` is the /sys in which its interface may be."""
    found = port.counters()
    errors = {name: value for name, value in sorted(found.items()) if _ERRORS.fullmatch(name)}
    rx_packets, tx_packets = _pair(found, _PACKETS) or (0, 0)
    for names, octets in _BYTES:
        if pair := _pair(found, [names]):
            return Totals(pair[0] * octets, pair[1] * octets, rx_packets, tx_packets, errors)
    netdev = _netdev(port, root)
    if not netdev:
        return Totals(0, 0, rx_packets, tx_packets, errors, known=False)
    statistics = root / "class/net" / netdev / "statistics"
    rx, tx = _number(statistics / "rx_bytes"), _number(statistics / "tx_bytes")
    return Totals(rx, tx, rx_packets, tx_packets, errors, netdev)


def _pair(found: Mapping[str, int], names: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
    """The first two counters that are both there."""
    return next(((found[rx], found[tx]) for rx, tx in names if rx in found and tx in found), None)


def _netdev(port: Port, root: Path) -> str:
    """The interface of a port, if it is in the namespace of that /sys; empty if not.

    An RDMA device names its interface wherever that is.  One of the same name may be here, so the MAC has to agree with
    the GUID that the device has made of it (addrconf_addr_eui48).
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
    """A port at one moment: its state as the kernel names it ("ACTIVE"), who has it, and what it has counted."""

    state: str
    owner: Owner
    totals: Totals

    @property
    def pod(self) -> str:
        """The pod by namespace and name, or by the name that it has without one; empty for nobody."""
        return "/".join(filter(None, self.owner))


@dataclass(frozen=True)
class Sample:
    """All ports, and when they were read, in seconds of the monotonic clock.

    ``wanted``: the devices, ports and pods that were asked for; all if it is empty.
    """

    at: float
    ports: Mapping[Name, Seen]
    wanted: Set[str] = frozenset()

    @property
    def shown(self) -> Mapping[Name, Seen]:
        """The ports that were asked for.  The others are there to compare these with."""
        return {
            name: seen
            for name, seen in self.ports.items()
            if not self.wanted or not self.wanted.isdisjoint(_words(name, seen))
        }


def sample(wanted: Set[str], remark: Callable[[str], None], root: Path = sysfs.SYS) -> Sample:
    """Read all ports.  ``remark`` is told what cannot be seen."""
    records = [record for folder in places.state_dirs() for _, record in journal.files(folder) if record]
    found = every(records, remark, root)
    ports = {(port.rdma_dev, port.number): _seen(port, records, remark) for port in found}
    return Sample(time.monotonic(), ports, wanted)


def _words(name: Name, seen: Seen) -> set[str]:
    """What a person may call it by."""
    return {name[0], "/".join(name), seen.owner[1], seen.pod} - {""}


def _seen(port: Port, records: Iterable[Record], remark: Callable[[str], None]) -> Seen:
    return Seen(port.state.rpartition(": ")[2], port.owner, _totals(port, records, remark))


def _totals(port: Port, records: Iterable[Record], remark: Callable[[str], None]) -> Totals:
    """What it has counted.  A pod's soft-RoCE device is over an interface in the pod, also where the host sees the
    device."""
    found = read(port, port.root)
    for record in records:
        if not found.known and port.rdma_dev in record.rdma_devs:
            with ports.sysfs_of(record, remark) as root:
                found = read(port, root) if root else found
    return found
