"""The facts about a node, and findings, as values.

A path in a fact is the path that was read, so that a person can read it too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from base.kernel.dcb import Dcb
from base.protocol.result import Address
from base.protocol.spec import Config
from cni import attachment_state
from ctl.fabric.wiring.findings import Miswired
from hardware.functions import Place
from hardware.model import Device
from hardware.rdma_devices import Hca
from ipam.ranges import Span
from node.model import Settings


@dataclass(frozen=True)
class Addresses:
    """The addresses that a network can allocate, from the configuration in ``source``.

    - ``unrequested``: those for pods that request none.  ``is_shared``: the nodes share them.
    - ``of_node``: more of them, on this node only: of the parent's subnets, and of ranges for this node.
    - ``overlaps``: the configuration permits that another network has them.
    """

    source: str
    network: str
    spans: tuple[Span, ...]
    unrequested: tuple[Span, ...] = ()
    is_shared: bool = False
    overlaps: bool = False
    of_node: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Definition:
    """A NetworkAttachmentDefinition: "namespace/name", the resource of its pods, and whether it is for hpn.

    ``rails``: the resources of its pods that its rails name.  ``addresses``: of its plugins.  ``plugin``: the type of
    the first one.
    """

    name: str
    resource: str = ""
    rails: tuple[str, ...] = ()
    is_ours: bool = False
    addresses: tuple[Addresses, ...] = ()
    plugin: str = ""

    @property
    def resources(self) -> tuple[str, ...]:
        return (*filter(None, [self.resource]), *self.rails)


@dataclass(frozen=True)
class Controllers:
    """Controllers of others in the cluster.

    - ``policies``: each MultiNetworkPolicy with a network that it is for, both "namespace/name".
    - ``enforced``: the types of plugins on whose networks a controller enforces policies.
    - ``injectors``: the webhooks that add a network's resource to its pods.
    """

    policies: tuple[tuple[str, str], ...] = ()
    enforced: frozenset[str] = frozenset()
    injectors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Facts from the API server: the number of nodes, the resources that any node offers, and the networks.

    ``of_one_node``: the resources that only one node offers.
    """

    nodes: int
    offered: frozenset[str]
    definitions: tuple[Definition, ...]
    of_one_node: frozenset[str] = frozenset()
    controllers: Controllers = Controllers()


@dataclass(frozen=True)
class Slices:
    """This node's ResourceSlices at the API server: how many, and why they are unknown; empty if they are known.

    ``strangers``: those of hpn's driver that another program made.  ``node``: this node's name there; empty if unknown.
    """

    number: int
    silent: str = ""
    strangers: tuple[str, ...] = ()
    node: str = ""


@dataclass(frozen=True)
class Blocks:
    """This node's blocks of a shared network.

    - ``states``: the number of blocks in each state.  ``room``: attachments that still fit; -1 if unknown.
    - ``seen``: seconds since the backend confirmed the blocks.  ``silent``: why the backend cannot be read now; empty
      if it can.
    - ``ahead``: this node's clock minus the backend's, in seconds.
    """

    file: str
    states: Mapping[str, int]
    room: int
    seen: float
    silent: str = ""
    ahead: float = 0.0


NOWHERE: Final = Place("", (), -1)


class Severity(StrEnum):
    """Pods fail or will fail; something is slower, older or fuller than it should be; information."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """The result of a check: the value that was read and its path, and the command or key that repairs it."""

    severity: Severity
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Process:
    """A container runtime, irqbalance, Multus's daemon or a process of hpn.

    - ``build``: the version of hpn that it runs; empty for other programs.
    - ``memlock`` and its cgroup's ``memory``: limits in bytes; None if unlimited or unknown.
    """

    path: str
    name: str
    words: tuple[str, ...] = ()
    memlock: int | None = None
    build: str = ""
    memory: int | None = None


@dataclass(frozen=True)
class Disk:
    """The file system of a state directory: bytes, and inodes (0 if the file system does not count them)."""

    path: str
    size: int
    free: int
    inodes: int
    free_inodes: int


@dataclass(frozen=True)
class Machine:
    """The kernel and its processes.

    - ``rp_filter``: the values of ``all`` and ``default``, by path.  ``numa``: the processors of each NUMA node.
    - ``packages``: the versions of Debian's containerd packages, by name.
    - ``now``: the clock, in seconds since 1970; 0 for another kernel's files.
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
class Containerd:
    """The configuration of the containerd that kubelet can use.

    - ``program`` and ``file``: its path as it was started, and its configuration's.
    - ``cdi``: whether it enables CDI, in the file ``cdi_path``; None if no file has the key.
    - ``replaced_by``: a later file with CRI's section and without the key, whose section is the only one before 2.0.
    """

    program: str
    file: str
    cdi: bool | None = None
    cdi_path: str = ""
    replaced_by: str = ""


@dataclass(frozen=True)
class Link:
    """A PCIe link: GT/s per lane, and lanes."""

    speed: float
    width: int

    def __str__(self) -> str:
        return f"{self.speed:g} GT/s x{self.width}"


@dataclass(frozen=True)
class Nic:
    """A network controller.

    - ``mtu``, ``speed`` (Mbit/s): of its interface; 0 if unknown.
    - ``link``: its PCIe link now.  ``most``: the best link of it and the port above; None if /sys does not show them.
    - ``relaxed``: whether it may reorder writes.  ``ats``: whether it asks the IOMMU for addresses in advance.  None if
      its configuration space cannot be read.
    - ``read_request``: the largest read request in bytes; 0 if unknown.
    - ``affinity``: for a PF, the processors of each IRQ, by path.
    - ``traffic_classes``, ``hcas``: of the RDMA devices that the host sees.
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
    """The GID table of an RDMA port: its size, and the number of used entries."""

    path: str
    size: int
    used: int


@dataclass(frozen=True)
class Hardware:
    """Devices and RDMA.

    - ``rdma_mode``: "exclusive" or "shared"; empty if the kernel has no RDMA.
    - ``rdma_cm``: whether the device node exists.
    - ``redirecting``: bridges whose ACS redirects traffic between devices below them to the root complex, with their
      directories in /sys.
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
    """A configuration for hpn, from a file or a living attachment.

    - ``source``: the file.  ``refused``: why hpn refuses it; empty if valid.
    - ``is_the_runtimes``: whether the runtime attaches every pod to it: it is the first file of the directory.
    """

    source: str
    conf: Config
    refused: str = ""
    is_the_runtimes: bool = False


@dataclass(frozen=True)
class NodeFile:
    """The file of hpn node: its settings, or why it is refused, and whether its path is one that only hpn uses.

    - ``is_sys_read_only``: whether hpn node has a read-only /sys, as in a container.
    - ``kubeconfig``: the running hpn node's option.  ``environment``: its variables.
    """

    path: str
    settings: Settings | None
    refused: str = ""
    is_ours: bool = False
    is_sys_read_only: bool = False
    kubeconfig: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attachment:
    """A record of the journal.

    - ``title``: the attachment's name for people.  ``age``: seconds since ADD began.
    - ``state``, ``why``: see cni/attachment_state.py.  ``is_lost``: whether it replaces an unreadable record.
    - ``device``: the bus address of its own device; empty for none.
    - ``trouble``: why its IPAM plugin does not release; empty for none.
    - ``claim``: the claim's UID and the device's number, "<uid>/<number>"; empty for none.
    - ``lost_nodes``: device nodes that Allocate gave to the pod, and that the device no longer has.
    - ``subnets``: of its IPv4 addresses.  ``has_rules``: whether source-based rules route it.
    """

    file: str
    title: str
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
    claim: str = ""


@dataclass(frozen=True)
class PreparedClaim:
    """A claim that hpn node has prepared.

    - ``title``: its name for people.  ``age``: seconds since hpn node prepared it.
    - ``is_stale``: whether an earlier boot prepared it.  ``is_gone``: whether kubelet has none of its pods.
    - ``boot``: the boot id that hpn node read, if it is another than the node's here, although the node has been
      running since before; else empty.
    - ``is_given_up``: whether kubelet has given it up, and only attachments go on.
    - ``waiting``: its devices without an attachment, each with the way to one, "multus" or "chain".
    """

    file: str
    title: str
    age: float
    is_stale: bool
    is_gone: bool
    waiting: tuple[tuple[str, str], ...]
    is_given_up: bool = False
    boot: str = ""


@dataclass(frozen=True)
class Pool:
    """A network's range set: the number of addresses, of taken ones, and of those that dead pods hold."""

    place: str
    ranges: tuple[str, ...]
    size: int
    taken: int
    dead: int


@dataclass(frozen=True)
class State:
    """State on disk.

    - ``stranded``: records whose IPAM plugin does not release.
    - ``leases``: a directory of leases, and a phrase for its damage.
    - ``damaged_claims``: the unreadable files of prepared claims.
    - ``unproven``: a directory of leases, and addresses imported without a namespace, so that no death can be proved.
    - ``unsafe``: a state directory, a phrase for the part of its path that others can change, and the remedy.
    """

    folders: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    unreadable: tuple[str, ...] = ()
    stranded: tuple[Attachment, ...] = ()
    pools: tuple[Pool, ...] = ()
    leases: tuple[tuple[str, str], ...] = ()
    unsafe: tuple[tuple[str, str, str], ...] = ()
    blocks: tuple[Blocks, ...] = ()
    claims: tuple[PreparedClaim, ...] = ()
    damaged_claims: tuple[str, ...] = ()
    unproven: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class Socket:
    """A plugin's or the agent's socket: whether a process listens, and a device plugin's resource."""

    path: str
    listens: bool
    resource: str = ""


@dataclass(frozen=True)
class Programs:
    """Programs and their sockets.

    - ``plugin``: the path where runtimes find hpn.  ``runs``: whether it is an executable file.
    - ``is_this``: whether its bytes equal the running program's; None if unknown.
    - ``build``: the version of the running program; empty if it runs from its sources.
    - ``registry``: kubelet's directory of plugin sockets; empty if there is none.
    - ``daemonset_unit``: the unit of the DaemonSet; empty if there is none.
    """

    plugin: str = ""
    runs: bool = False
    is_there: bool = False
    is_this: bool | None = None
    build: str = ""
    registry: str = ""
    agent: str = ""
    sockets: tuple[Socket, ...] = ()
    daemonset_unit: str = ""


@dataclass(frozen=True)
class Facts:
    """All facts.

    - ``cluster``: None without a kubeconfig.  ``slices``: None unless the file of hpn node has resources by DRA.
    - ``without_names``: the policy file, if it does not limit the names that configurations use; else empty.
    - ``policy_refused``: the policy file, and why each ADD refuses it; empty if it is valid, or does not exist.
    - ``unread``: the unreadable files, and why.
    - ``containerd``: None if it does not run.
    - ``broken``: the first file of the runtime's directory, with the reason, if no runtime can read it.
    - ``wiring``: findings about the cables of this node's rails, each with the file that it is from.
    - ``addresses``: of the networks in files and attachments.  ``own_addresses``: the host's, with their interfaces.
    """

    machine: Machine = Machine()
    hardware: Hardware = Hardware()
    networks: tuple[Network, ...] = ()
    node_file: NodeFile | None = None
    state: State = State()
    programs: Programs = Programs()
    cluster: Cluster | None = None
    without_names: str = ""
    unread: tuple[tuple[str, str], ...] = ()
    slices: Slices | None = None
    addresses: tuple[Addresses, ...] = ()
    broken: tuple[str, str] | None = None
    own_addresses: Mapping[Address, str] = field(default_factory=dict)
    containerd: Containerd | None = None
    policy_refused: str = ""
    wiring: tuple[tuple[str, Miswired], ...] = ()


Check = Callable[[Facts], Iterable[Finding]]
