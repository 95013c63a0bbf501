"""Facts about this node's cables: what ``hpn fabric wiring`` finds about its rails."""

from collections.abc import Iterator
from pathlib import Path

from base.protocol.errors import CniError
from ctl.doctor.model import Hardware, Slices
from ctl.doctor.reading import Reader
from ctl.fabric.wiring import findings, groups, reading
from ctl.fabric.wiring.findings import Miswired
from hardware import neighbors


def wiring(
    read: Reader, hardware: Hardware, slices: Slices | None, kubeconfig: Path | None
) -> Iterator[tuple[str, Miswired]]:
    """The findings about this node, each with the file that it is from.

    With a kubeconfig, the slices of all nodes count.  Else this node's file of neighbors counts.
    """
    file = read.at(f"{neighbors.FILE}")
    wires = list(reading.of_devices((nic.device for nic in hardware.nics), neighbors.read(Path(file))))
    if read.root == Path("/") and any(one.leaf for one in wires):
        yield from ((file, one) for one in reading.of_firmware(wires))
    if kubeconfig and slices and slices.node:
        try:
            there = reading.of_operator(kubeconfig)
        except CniError as e:
            read.unread[f"{kubeconfig}"] = e.msg
        else:
            of_all = findings.in_cluster(there, groups.grouped(there))
            yield from ((f"{kubeconfig}", one) for one in of_all if one.node == slices.node)
            return
    # Of the speed there is a check without LLDP.
    yield from ((file, one) for one in findings.on_node(wires) if one.kind != "speed")
