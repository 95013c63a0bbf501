"""hpn devinfo and hpn gids: RDMA devices as ibv_devinfo shows them, and their GIDs as mlnx-tools' show_gids does.

The values come from /sys and RDMA netlink, without libibverbs.  Values that only verbs provide are left out, except for
known drivers (docs/user/rdma.md).  The form is that of rdma-core's libibverbs/examples/devinfo.c.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

from base.kernel import rdma_netlink, sysfs
from base.protocol.errors import LinkUnavailable
from base.protocol.spec import Json
from base.table import printable
from ctl.command_line import as_document, parser_for
from hardware import rdma_devices
from hardware.rdma_devices import Gid, Hca, Port

# Values by ibv_devinfo's names.
Fields = Iterator[tuple[str, str]]

# Keyed by enum rdma_node_type (include/rdma/ib_verbs.h); the values contain libibverbs' transport numbers.
_TRANSPORTS: Final = {4: "iWARP (1)", 5: "usNIC (2)", 6: "usNIC UDP (3)", 7: "unspecified (4)"}
_INFINIBAND: Final = "InfiniBand (0)"
_STATES: Final = {1: "PORT_DOWN", 2: "PORT_INIT", 3: "PORT_ARMED", 4: "PORT_ACTIVE"}
_PHYS_STATES: Final = {
    1: "SLEEP", 2: "POLLING", 3: "DISABLED", 4: "PORT_CONFIGURATION TRAINNING", 5: "LINK_UP", 6: "LINK_ERROR_RECOVERY",
    7: "PHY TEST",
}  # fmt: skip
_WIDTHS: Final = {"1": 1, "4": 2, "8": 4, "12": 8, "2": 16}
# SDR is missing: the kernel also reports it for unknown speeds (rate_show).
_SPEEDS: Final = {
    "DDR": "5.0 Gbps (2)", "QDR": "10.0 Gbps (4)", "FDR10": "10.0 Gbps (8)", "FDR": "14.0 Gbps (16)",
    "EDR": "25.0 Gbps (32)", "HDR": "50.0 Gbps (64)", "NDR": "100.0 Gbps (128)",
}  # fmt: skip
_FLAGS: Final = {
    "RESIZE_MAX_WR": 0, "BAD_PKEY_CNTR": 1, "BAD_QKEY_CNTR": 2, "RAW_MULTI": 3, "AUTO_PATH_MIG": 4,
    "CHANGE_PHY_PORT": 5, "UD_AV_PORT_ENFORCE": 6, "CURR_QP_STATE_MOD": 7, "SHUTDOWN_PORT": 8, "INIT_TYPE": 9,
    "PORT_ACTIVE_EVENT": 10, "SYS_IMAGE_GUID": 11, "RC_RNR_NAK_GEN": 12, "SRQ_RESIZE": 13, "N_NOTIFY_CQ": 14,
    "MEM_WINDOW": 17, "UD_IP_CSUM": 18, "XRC": 20, "MEM_MGT_EXTENSIONS": 21, "MEM_WINDOW_TYPE_2A": 23,
    "MEM_WINDOW_TYPE_2B": 24, "RC_IP_CSUM": 25, "RAW_IP_CSUM": 26, "MANAGED_FLOW_STEERING": 29,
}  # fmt: skip
_TAB: Final = 8
_DEVICE: Final = (1, 40)  # tabs before a name, and the column of the value
_PORT: Final = (3, 48)


def answer(words: Sequence[str], root: Path = sysfs.SYS) -> tuple[str, int]:
    """The command's output and exit status."""
    about = "Show RDMA devices and their ports, as ibv_devinfo does."
    parser = parser_for("devinfo", about, "example: hpn devinfo -v -d mlx5_0")
    parser.add_argument("-d", "--ib-dev", default="", metavar="DEVICE", help="this device; default: all")
    parser.add_argument("-v", "--verbose", action="store_true", help="more values, such as GIDs")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args(words)
    found = rdma_devices.one_of(rdma_devices.hcas(root), options.ib_dev)
    if not found:
        raise LinkUnavailable("there is no RDMA device in this network namespace; list the NICs: hpn devices")
    if options.json:
        document = {"devices": [_described(hca, root, verbose=options.verbose) for hca in found]}
        return as_document(document), 0
    lines = [line for hca in found for line in _lines(hca, root, verbose=options.verbose)]
    return "".join(f"{line}\n" for line in lines), 0


def _lines(hca: Hca, root: Path, *, verbose: bool) -> Iterator[str]:
    yield f"hca_id:\t{printable(hca.name)}"
    yield from _padded(_DEVICE, _of_device(hca, root))
    if verbose and root == sysfs.SYS:  # RDMA netlink describes only this machine
        yield from _capabilities(hca)
    for port in hca.ports:
        yield f"\t\tport:\t{port.number}"
        yield from _padded(_PORT, _of_port(hca, port, root))
        if verbose:
            yield from _padded(_PORT, _more_of_port(hca, port))
            yield from _padded(_PORT, ((f"GID[{gid.index:3}]", _gid(port, gid)) for gid in _shown(hca, port)))
        yield ""


def _of_device(hca: Hca, root: Path) -> Fields:
    yield "transport", _transport(hca)
    if hca.fw_ver:
        yield "fw_ver", hca.fw_ver
    yield "node_guid", hca.node_guid
    yield "sys_image_guid", hca.sys_image_guid
    if who := rdma_devices.identity(hca, root):
        yield "vendor_id", f"0x{who.vendor_id:04x}"
        yield "vendor_part_id", f"{who.vendor_part_id}"
        yield "hw_ver", f"0x{who.hw_ver:X}"
    if hca.board_id:
        yield "board_id", hca.board_id
    yield "phys_port_cnt", f"{len(hca.ports)}"


def _of_port(hca: Hca, port: Port, root: Path) -> Fields:
    yield "state", f"{_STATES.get(port.state, 'invalid state')} ({port.state})"
    if found := rdma_devices.mtus(hca, port, root):
        yield from zip(("max_mtu", "active_mtu"), (f"{rdma_devices.MTUS[n]} ({n})" for n in found), strict=True)
    yield "sm_lid", f"{port.number_of('sm_lid')}"
    yield "port_lid", f"{port.number_of('lid')}"
    yield "port_lmc", f"0x{port.number_of('lid_mask_count'):02x}"
    yield "link_layer", port.link_layer if port.link_layer == rdma_devices.ROCE else "InfiniBand"


def _more_of_port(hca: Hca, port: Port) -> Fields:
    if port.link_layer != rdma_devices.ROCE:  # for RoCE, verbs add a flag to the value in /sys
        yield "port_cap_flags", f"0x{port.number_of('cap_mask'):08x}"
    yield "sm_sl", f"{port.number_of('sm_sl')}"
    yield "pkey_tbl_len", f"{rdma_devices.places(port, 'pkeys')}"
    yield "gid_tbl_len", f"{rdma_devices.places(port, 'gids')}"
    rate = re.search(r"\((\d+)X (\w+)\)", port.rate)
    if rate and rate[1] in _WIDTHS:
        yield "active_width", f"{rate[1]}X ({_WIDTHS[rate[1]]})"
    if rate and rate[2] in _SPEEDS:
        yield "active_speed", _SPEEDS[rate[2]]
    if _transport(hca) == _INFINIBAND:
        physical = port.number_of("phys_state")
        yield "phys_state", f"{_PHYS_STATES.get(physical, 'invalid physical state')} ({physical})"


def _transport(hca: Hca) -> str:
    return _TRANSPORTS.get(hca.node_type, _INFINIBAND)


def _shown(hca: Hca, port: Port) -> Iterator[Gid]:
    """The GIDs with a nonzero lower half."""
    return (gid for gid in rdma_devices.gids(hca, port) if gid.gid[20:].strip("0:"))


def _gid(port: Port, gid: Gid) -> str:
    if port.link_layer != rdma_devices.ROCE:
        return gid.gid
    if gid.kind != "RoCE v2":
        return f"{gid.gid}, RoCE v1"
    address = IPv6Address(gid.gid)
    # As inet_ntop writes it.
    return f"{f'::ffff:{address.ipv4_mapped}' if address.ipv4_mapped else address}, RoCE v2"


def _capabilities(hca: Hca) -> Iterator[str]:
    """The device's capability flags; nothing if RDMA netlink does not report them."""
    with suppress(OSError):
        index = rdma_netlink.index_of(hca.name)
        if index is not None:
            flags = rdma_netlink.capabilities(index) & 0xFFFFFFFF
            yield from _padded(_DEVICE, [("device_cap_flags", f"0x{flags:08x}")])
            indent = "\t" * 5
            yield from (f"{indent}{name}" for name, bit in _FLAGS.items() if flags >> bit & 1)
            if rest := flags & ~sum(1 << bit for bit in _FLAGS.values()):
                yield f"{indent}Unknown flags: 0x{rest:X}"


def _padded(where: tuple[int, int], fields: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines with their values in one column, aligned with tabs."""
    tabs, column = where
    for name, value in fields:
        missing = column - tabs * _TAB - len(name) - 1
        yield "\t" * tabs + f"{name}:" + "\t" * -(-missing // _TAB) + printable(value)


def _described(hca: Hca, root: Path, *, verbose: bool) -> Json:
    ports = list[Json]()
    for port in hca.ports:
        ports.append({"port": port.number, **dict(_of_port(hca, port, root))})
        if verbose:
            ports[-1] |= dict(_more_of_port(hca, port))
            ports[-1]["gids"] = {f"{gid.index}": _gid(port, gid) for gid in _shown(hca, port)}
    return {"hca_id": hca.name, **dict(_of_device(hca, root)), "ports": ports}
