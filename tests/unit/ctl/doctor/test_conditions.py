"""Each condition of a check: facts beside those of a finding, and the finding's other words.

support/doctor_cases.py has one node for each finding.  Here are the facts that a whole node would take long to show.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from base.kernel.dcb import Dcb
from cni.attachment_state import ATTACHED
from ctl.doctor.checks import CHECKS
from ctl.doctor.model import (
    Attachment,
    Containerd,
    Disk,
    Facts,
    GidTable,
    Hardware,
    Link,
    Machine,
    Network,
    Nic,
    NodeFile,
    Pool,
    PreparedClaim,
    Process,
    Programs,
    Severity,
    Socket,
    State,
)
from hardware.functions import Place
from hardware.model import Device, Kind, RdmaDevice
from hardware.rdma_devices import ACTIVE, Hca, Port
from node.model import PfRule, Resource, Selector, Settings, Sharing, Verbs

ERROR, WARNING, NOTE = Severity
OF_DEVICE = {one.name for one in fields(Device)} - {"id"}
RDMA = (RdmaDevice("mlx5_0"),)
EFA = (Hca("efa_0", "/sys/ib/efa_0", ports=(Port(1, "", ACTIVE, "ACTIVE", link_layer="Unknown"),)),)


def nic(number: int = 0, **keys: Any) -> Nic:
    """A rail, with these fields of Nic and Device."""
    address = f"0000:{number:02x}:00.0"
    device = Device(
        address, **{"kind": Kind.PF, "vendor": "15b3", "product": "101d", "netdevs": (f"rail{number}",), "pf": address,
        "driver": "mlx5_core", "link_type": "ether", "rdma": RDMA} | {k: v for k, v in keys.items() if k in OF_DEVICE},
    )  # fmt: skip
    return Nic(device, f"/sys/{address}", **{name: value for name, value in keys.items() if name not in OF_DEVICE})


def nics(*found: Nic, **more: Any) -> Facts:
    return Facts(hardware=Hardware(found), **more)


def port(state: int, **keys: Any) -> tuple[Hca, ...]:
    return (
        Hca("mlx5_0", "/sys/ib/mlx5_0", ports=(Port(1, "", state, "ACTIVE" if state == ACTIVE else "DOWN"),), **keys),
    )


def attached(**keys: Any) -> Attachment:
    return Attachment("/run/a.json", "hpn0 of default/a", **keys)


def state(*found: Attachment) -> State:
    return State(attachments=found)


def node_file(**keys: Any) -> NodeFile:
    settings = Settings(keys.pop("resources", ()), "hpn", **keys)
    return NodeFile("/etc/hpn/devices.yaml", settings, is_ours=True)


def process(*words: str, name: str = "", **keys: Any) -> Machine:
    return Machine(processes=(Process("/proc/8", name or words[0], words, **keys),))


def offering(*resources: dict[str, Any]) -> NodeFile:
    of = (Resource("example.com", "a", Sharing.EXCLUSIVE, (), **keys) for keys in resources)
    return NodeFile("/etc/hpn/devices.yaml", Settings(tuple(of), "hpn"))


def claim(**keys: Any) -> Facts:
    one = {"age": 601.0, "is_stale": False, "is_gone": True, "waiting": ()} | keys
    return Facts(state=State(claims=(PreparedClaim("/run/c.json", "default/c", **one),)))


PATHS = ("/proc/sys/net/ipv4/conf/all/rp_filter", "/proc/sys/net/ipv4/conf/default/rp_filter")
NETS = (("10.0.0.0/8", "10.1.0.0/16"), ("10.1.0.0/16",))


def two_interfaces(values: tuple[int, int] = (0, 1), subnets: Sequence[tuple[str, ...]] = NETS, **keys: Any) -> Facts:
    found = [attached(**{"pod": "default/a", "subnets": one} | keys) for one in subnets]
    return Facts(Machine(rp_filter=dict(zip(PATHS, values, strict=True))), state=state(*found))


def lossy(value: str = "Global tclass=104", **keys: Any) -> Facts:
    """DSCP 26."""
    return nics(nic(**{"traffic_classes": {"/tc": value}, "dcb": Dcb((3,), ((26, 4), (24, 3)))} | keys))


DEBIANS = "/usr/bin/containerd"


def old_runtime(
    version: str = "1.6.20~ds1-1", *, program: str = DEBIANS, asked: str = "1.1.0", is_its: bool = True
) -> Facts:
    networks = (Network("/etc/cni/net.d/10-hpn.conf", {"cniVersion": asked}, is_the_runtimes=is_its),)
    machine = Machine(packages={"containerd": version}, packages_path="/var/lib/dpkg/status")
    return Facts(machine, networks=networks, containerd=Containerd(program, "/etc/containerd/config.toml"))


def asked(rule: dict[str, Any], *found: Nic, read_only: bool = False, pods: Sequence[Attachment] = ()) -> Facts:
    """A PF's rule in the device file."""
    file = node_file(pfs=(PfRule(Selector(netdevs=frozenset({"rail0"})), "pfs[0]", **rule),))
    return nics(*found, node_file=replace(file, is_sys_read_only=read_only), state=state(*pods))


RAIL = {"names": ("rail0",), "vfs": 4, "mtu": 1500}
VF = nic(9, kind=Kind.VF, pf="0000:00:00.0", is_elsewhere=True)
IN_POD = attached(device=VF.device.id)


def balanced(*words: str, name: str = "irqbalance", **keys: Any) -> Facts:
    return nics(nic(**{"interrupts": (7, 41)} | keys), machine=process("irqbalance", *words, name=name))


TWO_NODES = {0: frozenset({0, 1}), 1: frozenset({2, 3})}


def interrupts(*cpus: int, numa: int = 0, nodes: Any = TWO_NODES, other: Sequence[int] = (2,)) -> Facts:
    affinity = {"/irq/7": frozenset(cpus), "/irq/8": frozenset(other)} if cpus else {}
    return nics(nic(numa=numa, affinity=affinity), machine=Machine(numa=nodes))


UP, PORT_A, PORT_B = "0000:01:00.0", "0000:02:00.0", "0000:02:01.0"


def behind(nic_above: Sequence[str], redirecting: str) -> Facts:
    rail = nic(place=Place("", ("pci0000:00", *nic_above), 0))
    gpu = Place("0000:04:00.0", ("pci0000:00", UP, PORT_B), 0)
    return Facts(hardware=Hardware((rail,), gpus=(gpu,), redirecting={redirecting: f"/sys/{redirecting}"}))


def kubelet_has(*, listens: bool) -> Facts:
    sockets = (Socket("/r/hpn-a.sock", listens),)
    return Facts(node_file=node_file(), programs=Programs(registry="/r", sockets=sockets))


def disk(size: int, free: int, inodes: int = 0, free_inodes: int = 0) -> Facts:
    return Facts(Machine(disks=(Disk("/d", size, free, inodes, free_inodes),)))


def programs(**keys: Any) -> Programs:
    return Programs(**{"plugin": "/opt/cni/bin/hpn", "build": "2", "agent": "/run/hpn/agent.sock"} | keys)


NETWORK = (Network("/etc/cni/net.d/10-hpn.conf", {}),)
MULTUS = process("/entrypoint", name="multus-daemon", memory=50 << 20)


def wanting(conf: Any, mode: str = "exclusive", **more: Any) -> Facts:
    """A network with this key rdma."""
    hardware = Hardware(rdma_mode=mode, rdma_mode_path="/netns_mode")
    return Facts(hardware=hardware, networks=(Network("/n.conf", {"rdma": conf}),), **more)


def filed(mode: str = "exclusive", **keys: Any) -> Facts:
    return Facts(hardware=Hardware(rdma_mode=mode, rdma_mode_path="/netns_mode"), node_file=node_file(**keys))


def shared(verbs: Verbs = Verbs.CHOSEN, sharing: Sharing = Sharing.SHARED) -> Facts:
    return filed(resources=(Resource("a", "b", sharing, (), verbs=verbs, source="resources[0]"),))


def infiniband(**keys: Any) -> Facts:
    guid = keys.pop("guid", "0000:0000:0000:0000")
    hcas = (Hca("mlx5_9", "/sys/ib/mlx5_9", node_guid=guid),)
    return nics(nic(9, **{"kind": Kind.VF, "link_type": "infiniband", "hcas": hcas} | keys))


# Facts, the severity of their finding or None, and words of its evidence and, on a line of its own, its remedy.
Row = tuple[Facts, Severity | None, str]
FAST = {"speed": 200_000, "read_request": 512}
ROWS: dict[str, list[Row]] = {
    "claim-gone": [
        (claim(), WARNING, "rm -r /run/c.json /run/c.d"),
        (claim(age=600.0), None, ""),
        (claim(is_stale=True), None, ""),
    ],
    "speed-differs": [
        (nics(nic(0, speed=100), nic(1, speed=200)), WARNING, "rail0/speed: 100; another NIC 15b3:101d"),
        (nics(nic(0, speed=100, rdma=(), vfs=1), nic(1, speed=200)), WARNING, "rail0/speed: 100"),
        (nics(nic(0, speed=100, rdma=()), nic(1, speed=200)), None, ""),
        (nics(nic(0, speed=100, reserved="the default route"), nic(1, speed=200)), None, ""),
        (nics(nic(0, speed=100, kind=Kind.VF), nic(1, speed=200)), None, ""),
        (nics(nic(0, speed=100, product="1017"), nic(1, speed=200)), None, ""),
        (nics(nic(0, speed=0), nic(1, speed=200)), None, ""),
    ],
    "mtu-differs": [
        (nics(nic(0, mtu=1500), nic(1, mtu=9000)), WARNING, "set mtu: 9000 in pfs"),
        (nics(nic(0, mtu=0), nic(1, mtu=9000)), None, ""),
        (nics(nic(0, mtu=2044, link_type="infiniband"), nic(1, mtu=9000)), None, ""),
    ],
    "port-down": [
        (nics(nic(0, hcas=port(1)), nic(1, hcas=port(ACTIVE))), WARNING, "ip link set IFNAME up"),
        (nics(nic(0, hcas=port(1)), nic(1, hcas=port(1))), None, ""),
    ],
    "traffic-class-lossy": [
        (lossy(), WARNING, "DSCP 26 with priority 4; /sys/0000:00:00.0/net/rail0 has PFC on 3"),
        (lossy("Global tclass=96"), None, ""),
        (lossy("Global tclass=0"), None, ""),
        (lossy(""), None, ""),
        (lossy(dcb=Dcb((), ((26, 4),))), None, ""),
        (lossy(dcb=None), None, ""),
    ],
    "vf-elsewhere": [
        (nics(VF), NOTE, f"no attachment holds {VF.device.id}"),
        (nics(VF, state=state(IN_POD)), None, ""),
        (nics(VF, state=state(replace(IN_POD, alive=False))), NOTE, ""),
        (nics(nic(is_elsewhere=True)), None, ""),
    ],
    "rp-filter": [
        (two_interfaces(), WARNING, f"{PATHS[1]}: 1; pod default/a has several interfaces in 10.1.0.0/16"),
        (two_interfaces((2, 1)), None, ""),
        (two_interfaces((0, 0)), None, ""),
        (two_interfaces(subnets=NETS[:1]), None, ""),
        (two_interfaces(subnets=(NETS[1], ("10.2.0.0/16",))), None, ""),
        (two_interfaces(alive=False), None, ""),
        (two_interfaces(pod=""), None, ""),
        (two_interfaces(has_rules=True), None, ""),
    ],
    "runtime-too-old": [
        (old_runtime(), ERROR, "containerd is 1.6.20~ds1-1"),
        (old_runtime("1:0.9"), ERROR, "containerd is 1:0.9"),
        (old_runtime("2.1.4-1"), None, ""),
        (old_runtime("1:2.1.4"), None, ""),
        (old_runtime("10.1"), None, ""),
        (old_runtime(program="/usr/local/bin/containerd"), None, ""),
        (old_runtime(asked="1.0.0"), None, ""),
        (old_runtime(is_its=False), None, ""),
    ],
    "node-file-refused": [
        (Facts(node_file=node_file(left_out=("resources[1]: no",))), WARNING, "left out: resources[1]: no"),
    ],
    "node-not-running": [
        (Facts(node_file=node_file(), programs=Programs(registry="/r")), ERROR, "/r/hpn-*.sock"),
        (kubelet_has(listens=False), ERROR, ""),
        (kubelet_has(listens=True), None, ""),
        (Facts(node_file=replace(node_file(), is_ours=False), programs=Programs(registry="/r")), None, ""),
        (Facts(node_file=replace(node_file(), settings=None), programs=Programs(registry="/r")), None, ""),
        (Facts(node_file=node_file()), None, ""),
    ],
    "node-not-as-asked": [
        (asked({"num_vfs": 8}, nic(**RAIL)), WARNING, "sriov_numvfs: 4; the device file asks for numVfs 8"),
        (asked({"num_vfs": 4, "mtu": 1500}, nic(**RAIL)), None, ""),
        (
            asked({"mtu": 9000}, nic(**RAIL), VF, pods=(IN_POD,)),
            WARNING,
            "asks for mtu 9000 (/etc/hpn/devices.yaml, pfs[0])\nfind",
        ),
        (
            asked({"num_vfs": 4, "mtu": 9000}, nic(**RAIL), VF, pods=(IN_POD,)),
            WARNING,
            "mtu 9000 (/etc/hpn/devices.yaml, pfs[0])\nfind",
        ),
        (asked({"mtu": 9000}, nic(**RAIL | {"mtu": 0})), None, ""),
        (asked({"num_vfs": 8}, nic(**RAIL | {"kind": Kind.NETDEV})), None, ""),
        (
            asked({"num_vfs": 8}, nic(**RAIL), VF, pods=(IN_POD,)),
            WARNING,
            "pods have VFs: hpn0 of default/a\nrun: kubectl drain",
        ),
        (asked({"num_vfs": 8}, nic(**RAIL), VF, pods=(replace(IN_POD, alive=False),)), WARNING, "pfs[0])\nfind"),
        (
            asked({"num_vfs": 8}, nic(**RAIL), replace(VF, device=replace(VF.device, pf="x")), pods=(IN_POD,)),
            WARNING,
            "pfs[0])\nfind",
        ),
        (
            asked({"num_vfs": 8}, nic(**RAIL), VF, pods=(IN_POD,), read_only=True),
            WARNING,
            "read-only /sys; pods have VFs: hpn0 of default/a\nmount the node's /sys",
        ),
    ],
    "irqbalance": [
        (
            balanced(),
            WARNING,
            "IRQs 7, 41 of 0000:00:00.0\nsystemctl disable --now irqbalance, or exclude them with its op",
        ),
        (balanced(interrupts=tuple(range(10))), WARNING, "IRQs 0, 1, 2, 3, 4, 5, 6, 7 and 2 more of"),
        (balanced(interrupts=tuple(range(8))), WARNING, "IRQs 0, 1, 2, 3, 4, 5, 6, 7 of"),
        (balanced(kind=Kind.VF), WARNING, ""),
        (balanced(rdma=()), None, ""),
        (balanced("--banirq=7"), WARNING, ""),
        (balanced("--banirq=7", "-i", "041"), None, ""),
        (balanced("--banmod=mlx5_core"), None, ""),
        (balanced("-m", "ice"), WARNING, ""),
        (balanced("--policyscript=/x"), None, ""),
        (balanced(name="other"), None, ""),
    ],
    "irq-elsewhere": [
        (interrupts(2), WARNING, "none of the 2 IRQs of 0000:00:00.0 goes to its NUMA node, 0"),
        (interrupts(1), None, ""),
        (interrupts(2, other=()), None, ""),
        (interrupts(), None, ""),
        (interrupts(2, numa=-1), None, ""),
        (interrupts(2, nodes={0: frozenset({0, 1})}), None, ""),
    ],
    "pcie-link": [
        (nics(nic(link=Link(8, 16), most=Link(16, 16))), WARNING, "8 GT/s x16; device and slot support 16 GT/s x16"),
        (nics(nic(link=Link(16, 8), most=Link(16, 16))), WARNING, "16 GT/s x8;"),
        (nics(nic(link=Link(16, 16), most=Link(16, 16))), None, ""),
        (nics(nic(link=None, most=Link(16, 16))), None, ""),
        (nics(nic(link=Link(16, 16), most=None)), None, ""),
    ],
    "pcie-read-request": [
        (
            nics(nic(**FAST), nic(1, read_request=512)),
            NOTE,
            "512 bytes; it should be 4096\nsetpci -s 0000:00:00.0 CAP_EXP+8.w=5000:7000",
        ),
        (nics(nic(**FAST), nic(1, read_request=1024)), WARNING, "512 bytes; it should be 4096"),
        (
            nics(nic(read_request=512), nic(1, read_request=1024)),
            WARNING,
            "512 bytes; it should be 1024\nsetpci -s 0000:00:00.0 CAP_EXP+8.w=3000:7000",
        ),
        (nics(nic(read_request=512), nic(1, read_request=512)), None, ""),
        (nics(nic(**FAST | {"read_request": 0}), nic(1, read_request=512)), None, ""),
        (nics(nic(**FAST | {"read_request": 4096})), None, ""),
    ],
    "pcie-ats": [
        (nics(nic(ats=True), nic(1, ats=False)), WARNING, "ATS Enable: 1, /sys/0000:01:00.0/config, ATS Enable: 0"),
        (nics(nic(ats=True), nic(1, ats=None)), None, ""),
    ],
    "pcie-acs": [
        (
            behind((UP, PORT_A), PORT_A),
            WARNING,
            f"/sys/{PORT_A}/config: ACS redirects traffic between 0000:00:00.0 and the GPU 0000:04:00.0",
        ),
        (behind((UP, PORT_A), PORT_B), WARNING, f"/sys/{PORT_B}/config"),
        (behind((UP, PORT_A), UP), None, ""),
        (behind(("0000:07:00.0",), PORT_B), None, ""),
    ],
    "plugin-missing": [
        (Facts(programs=programs()), NOTE, "/opt/cni/bin/hpn does not exist"),
        (Facts(programs=programs(is_there=True)), ERROR, "is not an executable file"),
        (Facts(programs=programs(), networks=NETWORK), ERROR, "does not exist"),
        (Facts(programs=programs(), state=state(attached())), ERROR, ""),
        (Facts(programs=programs(), node_file=node_file()), ERROR, ""),
    ],
    "plugin-differs": [
        (Facts(programs=programs(runs=True, is_this=False)), WARNING, ""),
        (Facts(programs=programs(is_this=False)), None, ""),
        (Facts(programs=programs(runs=True)), None, ""),
    ],
    "daemon-differs": [
        (Facts(process("hpn", "agent", build="1"), programs=programs()), WARNING, "restart hpn-agent.service"),
        (Facts(process("hpn", "node", build="1"), programs=programs()), WARNING, "restart hpn-node.service"),
        (Facts(process("hpn", "node", build="2"), programs=programs()), None, ""),
        (Facts(process("other", "node"), programs=programs()), None, ""),
        (Facts(process("hpn", "gc", build="1"), programs=programs()), None, ""),
        (Facts(process("hpn", "node", build="1"), programs=programs(is_this=False)), None, ""),
    ],
    "agent-missing": [
        (Facts(programs=programs(runs=True), networks=NETWORK), NOTE, "/run/hpn/agent.sock"),
        (Facts(MULTUS, programs=programs(runs=True), state=state(attached())), WARNING, "a limit of 50 MiB"),
        (Facts(process("x", memory=50 << 20), programs=programs(runs=True), networks=NETWORK), NOTE, ""),
        (Facts(programs=programs(runs=True)), None, ""),
        (Facts(programs=programs(), networks=NETWORK), None, ""),
    ],
    "socket-dead": [
        (Facts(programs=programs(sockets=(Socket("/r/hpn-a.sock", listens=False),))), WARNING, "program, hpn-node;"),
        (Facts(programs=programs(sockets=(Socket("/r/b.sock", listens=False),))), WARNING, "program, a device plugin;"),
        (Facts(programs=programs(sockets=(Socket("/r/agent.sock", listens=False),))), WARNING, "program, hpn-agent;"),
    ],
    "mode": [
        (Facts(process("hpn", "daemonset", "agent", build="2")), NOTE, "in containers, so after a reboot"),
        (Facts(process("hpn", "agent", "--host", build="2")), NOTE, ""),
        (Facts(process("hpn", "agent", build="2")), None, ""),
        (Facts(process("x", "daemonset", "agent")), None, ""),
    ],
    "not-readable": [
        (Facts(unread=tuple((name, "no") for name in "abcd")), NOTE, "a, b, c and 1 more: no"),
        (Facts(unread=tuple((name, "no") for name in "abc")), NOTE, "a, b, c: no"),
    ],
    "rdma-mode": [
        (wanting({"mode": "shared"}), ERROR, "/n.conf: rdma.mode is shared, but /netns_mode shows exclusive"),
        (wanting({"mode": "rxe"}), ERROR, "rdma system set netns shared"),
        (wanting({"mode": "exclusive"}), None, ""),
        (wanting({"mode": ["shared"]}), None, ""),
        (wanting({"mode": "other"}), None, ""),
        (wanting("shared"), None, ""),
        (
            Facts(
                hardware=Hardware(rdma_mode="shared"),
                networks=(Network("/n", {"rdma": {"mode": "exclusive"}}, "refused"),),
            ),
            None,
            "",
        ),
        (wanting({}, state=state(attached(conf={"rdma": {"mode": "shared"}}))), ERROR, "/run/a.json: rdma.mode"),
        (wanting({}, state=state(attached(alive=False, conf={"rdma": {"mode": "shared"}}))), None, ""),
        (filed(rdma_exclusive=False), ERROR, "devices.yaml: rdmaNamespaces is shared"),
        (filed("shared", rdma_exclusive=True), ERROR, "devices.yaml: rdmaNamespaces is exclusive"),
        (filed(rdma_exclusive=None), None, ""),
        (shared(), ERROR, "devices.yaml: resources[0] shares one RDMA device"),
        (shared(Verbs.NONE), None, ""),
        (shared(sharing=Sharing.EXCLUSIVE), None, ""),
    ],
    "rdma-absent": [
        (wanting({}, ""), NOTE, "nothing, if no pod needs RDMA"),
        (wanting({"required": True}, ""), ERROR, "the kernel has no RDMA; /n.conf: rdma.required"),
        (wanting({"required": False}, ""), NOTE, ""),
        (wanting(True, ""), NOTE, ""),
        (wanting({"required": True}, "", unread=(("/netns_mode", "no"),)), None, ""),
    ],
    "rdma-cm-missing": [
        (Facts(hardware=Hardware((nic(),), rdma_mode="shared", rdma_cm_path="/c")), WARNING, "/c does not"),
        (Facts(hardware=Hardware((nic(rdma=()),), rdma_mode="shared")), None, ""),
        (Facts(hardware=Hardware((nic(hcas=EFA),), rdma_mode="shared")), None, ""),
        (Facts(hardware=Hardware((nic(),))), None, ""),
        (Facts(hardware=Hardware((nic(),), rdma_mode="shared", rdma_cm_path="/c"), unread=(("/c", "no"),)), None, ""),
    ],
    "memlock": [
        (nics(nic(), machine=process("crio", memlock=65536)), WARNING, "65536 bytes"),
        (nics(nic(rdma=()), machine=process("crio", memlock=65536)), None, ""),
        (nics(nic(), machine=process("crio")), None, ""),
        *(
            (nics(nic(), machine=process("crio", memlock=65536), node_file=offering(*resources)), severity, text)
            for resources, severity, text in (
                ([{}], WARNING, "set cdi: true, or by: dra, in the device file for example.com/a; or set LimitMEMLOCK"),
                ([{"cdi": True}, {}], WARNING, "the device file for example.com/a; or"),
                ([{"cdi": True}, {"by_dra": True}], None, ""),
                ([{"memlock": "keep"}, {"verbs": Verbs.NONE}, {"kind": "accelerator"}], None, ""),
            )
        ),
        (nics(nic(), machine=process("hpn", memlock=65536)), None, ""),
    ],
    "gid-table-full": [
        (Facts(hardware=Hardware(tables=(GidTable("/t", 10, 9),))), WARNING, "/t: 9 of 10 entries"),
        (Facts(hardware=Hardware(tables=(GidTable("/t", 10, 8), GidTable("/u", 0, 0)))), None, ""),
    ],
    "vf-guid-zero": [
        (infiniband(), WARNING, "/sys/ib/mlx5_9/node_guid"),
        (infiniband(guid="0216:3eff:fe10:f8b0"), None, ""),
        (infiniband(kind=Kind.PF), None, ""),
        (infiniband(link_type="ether"), WARNING, " mac MAC; echo 0000:09:00.0 >/sys/bus/pci/drivers/mlx5_core/unbind"),
    ],
    "device-nodes-differ": [
        (Facts(state=state(attached(lost_nodes=("/dev/x",)))), WARNING, "has lost /dev/x"),
        (Facts(state=state(attached(lost_nodes=("/dev/x",), state=f"not {ATTACHED}"))), None, ""),
    ],
    "pool-nearly-full": [
        (
            Facts(state=State(pools=(Pool("/p", ("10.0.0.0/24",), 10, 10, 1),))),
            WARNING,
            "10 of 10 addresses of 10.0.0.0/24 are taken, 1 by dead pods\nhpn gc",
        ),
        (Facts(state=State(pools=(Pool("/p", ("10.0.0.0/24",), 10, 10, 0),))), WARNING, "\nenlarge the range"),
    ],
    "disk-nearly-full": [
        (disk(100 << 20, 1 << 20), WARNING, "1024 KiB free of 102400"),
        (disk(100 << 30, 64 << 20), None, ""),
        (disk(100 << 20, 6 << 20), None, ""),
        (disk(100 << 30, 1 << 30, 10**6, 999), WARNING, "999 inodes free of 1000000"),
        (disk(100 << 30, 1 << 30, 10**6, 1001), None, ""),
        (disk(100 << 30, 1 << 30, 1000, 51), None, ""),
        (disk(0, 0), None, ""),
    ],
}


@pytest.mark.parametrize(
    ("check", "facts", "severity", "words"),
    [pytest.param(check, *row, id=f"{check}-{at}") for check, rows in ROWS.items() for at, row in enumerate(rows)],
)
def test_only_then(check: str, facts: Facts, severity: Severity | None, words: str) -> None:
    found = [(one.severity, f"{one.evidence}\n{one.remedy}") for one in CHECKS[check](facts)]
    assert [one for one, _ in found] == [severity] * bool(severity), found
    assert all(words in text for _, text in found), found
