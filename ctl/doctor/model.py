"""What doctor knows of a node, as values: facts, and what is found in them.

A path in a fact is the one that was read, so that a person can look there too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from base.kernel.dcb import Dcb
from base.protocol.spec import Config
from cni import attachment_state
from hardware.functions import Place
from hardware.model import Device
from hardware.rdma_devices import Hca
from node.model import Settings


@dataclass(frozen=True)
class Definition:
    """A NetworkAttachmentDefinition ("namespace/name"), the resource that its pods ask for, empty for none, and whether
    it is for hpn."""

    name: str
    resource: str = ""
    is_ours: bool = False


@dataclass(frozen=True)
class Cluster:
    """What the API server says: how many nodes there are, which resources any of them has, and the networks."""

    nodes: int
    offered: frozenset[str]
    definitions: tuple[Definition, ...]


@dataclass(frozen=True)
class Blocks:
    """This node's blocks of a network that the cluster shares: how many in each state, room for how many attachments
    (-1: not known), and how many seconds ago the store said so; ``silent`` is why it does not now."""

    file: str
    states: Mapping[str, int]
    room: int
    seen: float
    silent: str = ""


NOWHERE: Final = Place("", (), -1)


class Severity(StrEnum):
    """How bad it is: pods fail or will fail; something is slower, older or fuller than it should be; good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """What a check has found: what was read where, and the command or key that mends it."""

    severity: Severity
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Process:
    """A process that matters here: a container runtime, irqbalance, or one of ours.

    - ``name``: its comm.  ``words``: its command line.
    - ``memlock``: how many bytes it may lock in memory; None for no limit, or where it is not known.
    - ``build``: the version of hpn that it runs; empty for other programs.
    - ``memory``: how many bytes its cgroup may have; None for no limit, or where it is not known.
    """

    path: str
    name: str
    words: tuple[str, ...] = ()
    memlock: int | None = None
    build: str = ""
    memory: int | None = None


@dataclass(frozen=True)
class Disk:
    """The file system of a state directory: bytes, and inodes (0 where it does not count them)."""

    path: str
    size: int
    free: int
    inodes: int
    free_inodes: int


@dataclass(frozen=True)
class Machine:
    """The kernel and its processes.

    - ``rp_filter``: the values of ``all`` and ``default``, by path.
    - ``numa``: the processors of each NUMA node.
    - ``packages``: the versions of Debian's packages of containerd, by name; ``packages_path``: where they stand.
    - ``now``: the clock, in seconds since 1970; 0 where the files are not this kernel's.  ``synchronized``: whether
      something keeps it right.
    """

    kernel: str = ""
    kernel_path: str = ""
    processes: tuple[Process, ...] = ()
    rp_filter: Mapping[str, int] = field(default_factory=dict)
    numa: Mapping[int, frozenset[int]] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    packages_path: str = ""
    now: float = 0.0
    synchronized: bool = True
    disks: tuple[Disk, ...] = ()


@dataclass(frozen=True)
class Link:
    """A PCIe link: GT/s for each lane, and lanes."""

    speed: float
    width: int

    def __str__(self) -> str:
        return f"{self.speed:g} GT/s x{self.width}"


@dataclass(frozen=True)
class Nic:
    """A network controller.

    - ``path``: its directory in /sys.  ``mtu``, ``speed`` (Mbit/s): of its interface, 0 where that is not known.
    - ``link``: its PCIe link now; ``most``: the best that it and the port above it can; None where /sys does not say.
    - ``relaxed``: whether it may order its writes freely; None where its configuration space cannot be read.
    - ``read_request``: the bytes that it asks for at a time; 0 likewise.  ``ats``: whether it asks the IOMMU for
      addresses beforehand; None likewise.
    - ``interrupts``: its IRQs.  ``affinity``: of a PF the processors that each goes to, by path.
    - ``traffic_classes``: of its RDMA devices, where the driver says, by path.
    - ``dcb``: what the interface of a PF does with priorities, where the driver says.
    - ``place``: what is above it.
    - ``hcas``: its RDMA devices, where the host sees them.
    - ``is_elsewhere``: whether its interface is in another namespace than the host's.
    """

    device: Device
    path: str
    mtu: int = 0
    speed: int = 0
    link: Link | None = None
    most: Link | None = None
    relaxed: bool | None = None
    read_request: int = 0
    ats: bool | None = None
    interrupts: tuple[int, ...] = ()
    affinity: Mapping[str, frozenset[int]] = field(default_factory=dict)
    traffic_classes: Mapping[str, str] = field(default_factory=dict)
    dcb: Dcb | None = None
    place: Place = NOWHERE
    hcas: tuple[Hca, ...] = ()
    is_elsewhere: bool = False


@dataclass(frozen=True)
class GidTable:
    """The GID table of an RDMA port: how many places it has, and how many have an entry."""

    path: str
    size: int
    used: int


@dataclass(frozen=True)
class Hardware:
    """Devices and RDMA.

    - ``rdma_mode``: "exclusive" or "shared"; empty where the kernel has no RDMA.  ``rdma_mode_path``: where it stands.
    - ``rdma_cm``: whether the device node is there; ``rdma_cm_path``: where.
    - ``gpus``: what is above each.
    - ``redirecting``: the bridges whose ACS sends what one device below writes to another by the root complex, each
      with its directory in /sys.
    """

    nics: tuple[Nic, ...] = ()
    tables: tuple[GidTable, ...] = ()
    rdma_mode: str = ""
    rdma_mode_path: str = ""
    rdma_cm: bool = False
    rdma_cm_path: str = ""
    gpus: tuple[Place, ...] = ()
    redirecting: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A configuration of ours, from a file or a living attachment.

    - ``source``: the file.  ``refused``: why we refuse it; empty if we take it.
    - ``is_the_runtimes``: whether the runtime itself attaches each pod to it: the first of its directory.
    """

    source: str
    conf: Config
    refused: str = ""
    is_the_runtimes: bool = False


@dataclass(frozen=True)
class NodeFile:
    """The file of hpn node: what it says, or why it is refused.  ``is_ours``: whether it lies where only ours lies."""

    path: str
    settings: Settings | None
    refused: str = ""
    is_ours: bool = False


@dataclass(frozen=True)
class RenamedFile:
    """A file under the name that it had in an older version, its name now, and whether there is none of that name."""

    old: str
    new: str
    is_alone: bool


@dataclass(frozen=True)
class Attachment:
    """A record of the journal.

    - ``file``: its path.  ``whose``: the attachment's name for people.  ``age``: seconds since ADD began.
    - ``state``, ``why``: how it stands (cni/attachment_state.py).  ``is_lost``: whether it stands in for a record that
      could not be read.
    - ``device``: the bus address of what it has for itself; empty for none.
    - ``trouble``: why its IPAM plugin will not release; empty for none.
    - ``lost_nodes``: device nodes that its pod was promised of the device, and that the device does not have.
    - ``subnets``: of its IPv4 addresses.  ``has_rules``: whether it is routed by source address.
    """

    file: str
    whose: str
    netns: str = ""
    alive: bool = True
    state: str = attachment_state.ATTACHED
    why: str = ""
    is_lost: bool = False
    age: float = 0.0
    device: str = ""
    trouble: str = ""
    lost_nodes: tuple[str, ...] = ()
    pod: str = ""
    conf: Config = field(default_factory=dict)
    subnets: tuple[str, ...] = ()
    has_rules: bool = False


@dataclass(frozen=True)
class Pool:
    """The addresses of a network's range set: how many, and how many are not free."""

    place: str
    ranges: tuple[str, ...]
    size: int
    taken: int
    dead: int


@dataclass(frozen=True)
class State:
    """State on disk.

    - ``folders``: the directories that it is in.
    - ``unreadable``: records that cannot be read.  ``stranded``: records whose IPAM plugin would not release.
    - ``leases``: what is wrong with files of leases, in words, by their directory.
    - ``unsafe``: a state directory, and what of the way others than root can change, and what mends that; in words.
    """

    folders: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    unreadable: tuple[str, ...] = ()
    stranded: tuple[Attachment, ...] = ()
    pools: tuple[Pool, ...] = ()
    leases: tuple[tuple[str, str], ...] = ()
    unsafe: tuple[tuple[str, str, str], ...] = ()
    blocks: tuple[Blocks, ...] = ()


@dataclass(frozen=True)
class Socket:
    """A plugin's socket or the agent's, whether anybody listens, and which resource a device plugin offers there."""

    path: str
    listens: bool
    resource: str = ""


@dataclass(frozen=True)
class Programs:
    """Programs and their sockets.

    - ``plugin``: the path where runtimes find us; ``runs``: whether it is a file that can be run.
    - ``is_this``: whether it is the program that runs now, byte by byte; None where that is not known.
    - ``build``: the version of the program that runs now; empty where it runs from its sources.
    - ``registry``: kubelet's directory for plugins' sockets; empty where there is none.
    - ``agent``: where the agent's socket is, if there is one.
    """

    plugin: str = ""
    runs: bool = False
    is_there: bool = False
    is_this: bool | None = None
    build: str = ""
    registry: str = ""
    agent: str = ""
    sockets: tuple[Socket, ...] = ()


@dataclass(frozen=True)
class Facts:
    """All that was read.  ``cluster``: None if nobody said as whom to ask.  ``without_names``: the file that can say
    what configurations may name, if it does not.  ``unread``: what could not be, and why."""

    machine: Machine = Machine()
    hardware: Hardware = Hardware()
    networks: tuple[Network, ...] = ()
    node_file: NodeFile | None = None
    state: State = State()
    programs: Programs = Programs()
    cluster: Cluster | None = None
    without_names: str = ""
    renamed: tuple[RenamedFile, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()


Check = Callable[[Facts], Iterable[Finding]]
