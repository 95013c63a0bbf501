"""The users of RDMA devices: each pod's queue pairs (QPs), memory regions (MRs) and completion queues (CQs).

The kernel reports the thread that made a resource (base/kernel/rdma_netlink.py).  The thread's cgroup has a name of
kubelet, with the UID of the pod, also of one with the host's network.  Other runtimes' pods are known by the network
namespace of an attachment.  A pod can change neither, only add cgroups below its own.
"""

import errno
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from base.kernel import budget, netns, rdma_netlink, sysfs
from base.kernel.rdma_netlink import KERNEL, UNSEEN
from base.protocol import arguments
from base.protocol.errors import BadEnvironment
from base.state.record import Record

RESOURCES: Final = ("qp", "mr", "cq")
# The numbers of the rdma controller, and their files: all objects of a pod's cgroup, now and at most.
CHARGED: Final = {"objects": "rdma.current", "objects_peak": "rdma.peak"}
_REMARK: Final = "some users of RDMA devices are not shown, because this PID namespace does not contain them"
_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_INITIAL: Final = 0xEFFFFFFC  # the first PID namespace's inode (PROC_PID_INIT_INO)
_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")  # seconds; a thread's start is rounded down to it
# A pod's cgroup, with either driver of kubelet (pkg/kubelet/cm), also below kind's or as a container's own cgroup
# namespace shows it.  Only the first part that names a pod counts: a pod may add others below its own.
_CLASS: Final = r"[\w-]*kubepods(?:-burstable|-besteffort)?"
_POD: Final = re.compile(
    rf"(?:/\.\.)*(?:/(?:kubelet|burstable|besteffort|{_CLASS})(?:\.slice)?)*"
    rf"/(?:{_CLASS}-)?pod([0-9a-f_-]{{32,36}})(?:\.slice)?(?=[/ ]|$)"
)


class User(NamedTuple):
    """A pod, by name or only by UID; or in ``other`` a word for the users that are no pod."""

    namespace: str = ""
    pod: str = ""
    uid: str = ""
    other: str = ""

    @property
    def name(self) -> str:
        """The pod as namespace/name, or by name alone; empty if it is unknown."""
        return "/".join(filter(None, (self.namespace, self.pod)))

    @property
    def title(self) -> str:
        """The user for people: the pod's name, its UID, or "(kernel)"."""
        return self.name or self.uid or f"({self.other})"


OF_KERNEL, OF_HOST, UNKNOWN = User(other="kernel"), User(other="host"), User(other="unknown")
# For each device and user, the numbers of RESOURCES, and of CHARGED that the kernel has.
Uses = Mapping[tuple[str, User], Mapping[str, int]]


def uses(records: Iterable[Record], remark: Callable[[str], None]) -> Uses:
    """The users of the RDMA devices of our namespace.  ``remark`` gets a sentence if users are in another PID
    namespace.  Raises OSError.

    UNKNOWN has resources whose thread has ended, is new, or is not visible.  A device is left out if it or its driver
    does not answer.
    """
    budget.begin()
    began, made = time.clock_gettime(time.CLOCK_BOOTTIME), list[tuple[str, str, int]]()
    for name, index in _devices().items():
        with suppress(OSError):
            made += [(name, kind, thread) for kind in RESOURCES for thread in rdma_netlink.creators(index, kind)]
    if not made:
        return {}
    threads, pods = {thread for _, _, thread in made}, _Pods(records)
    user = {thread: pods.user(thread, began) for thread in threads} if _is_proc_ours() else {}
    user |= {KERNEL: OF_KERNEL}
    if not threads <= user.keys() or (UNSEEN in threads and os.stat("/proc/self/ns/pid").st_ino != _INITIAL):
        remark(_REMARK)
    found = defaultdict[tuple[str, User], Counter[str]](Counter)
    for name, kind, thread in made:
        found[name, user.get(thread, UNKNOWN)][kind] += 1
    for (name, one), numbers in found.items():
        for charge, file in CHARGED.items() if one in pods.folders else ():
            lines = sysfs.line(pods.folders[one] / file)
            if number := re.search(rf"^{re.escape(name)} .*hca_object=(\d+)", lines, re.MULTILINE):
                numbers[charge] = int(number[1])
    return found


def _devices() -> dict[str, int]:
    try:
        return rdma_netlink.indexes()
    except OSError as e:
        if e.errno == errno.EPROTONOSUPPORT:  # the kernel has no RDMA
            return {}
        raise


def _is_proc_ours() -> bool:
    """Whether /proc numbers threads as our PID namespace does (man 5 proc_pid_status, NSpid)."""
    return bool(re.search(r"^NSpid:\t\d+$", (_PROC / "self/status").read_text(), re.MULTILINE))


class _Pods:
    """The pods with an attachment, by UID and by network namespace.  ``folders``: the cgroups that threads led to."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_uid, self._by_netns = dict[str, User](), dict[tuple[int, int], User]()
        self.folders = dict[User, Path]()
        for record in records:
            if record.of_this_boot and record.pod:
                namespace, _, pod = record.pod.rpartition("/")
                with suppress(BadEnvironment):
                    user = User(namespace, pod, arguments.cni_args(record.args).get("K8S_POD_UID", ""))
                    self._by_netns[record.identity.inode, record.identity.cookie] = user
                    self._by_uid[user.uid] = user

    def user(self, thread: int, began: float) -> User:
        """The user that a thread belongs to.  It is UNKNOWN if the thread began after ``began``, in seconds of
        CLOCK_BOOTTIME: another thread may have had its number then."""
        try:
            uid, folder = pod_cgroup((_PROC / str(thread) / "cgroup").read_bytes().decode(errors="replace"))
            user = self._by_uid.get(uid, User(uid=uid)) if uid else self._by_namespace(thread)
            # Read last: so the rest was the same thread's.
            is_same = time.clock_gettime(time.CLOCK_BOOTTIME) - netns.age(str(thread)) + _TICK <= began
        except OSError:  # it ended, or we may not inspect it
            return UNKNOWN
        if folder and is_same:
            self.folders[user] = _CGROUPS / folder
        return user if is_same else UNKNOWN

    def _by_namespace(self, thread: int) -> User:
        if not self._by_netns:
            return OF_HOST
        with netns.hold_open(f"{_PROC}/{thread}/ns/net") as fd:
            number = netns.inode(fd)
            # To read the cookie, we enter the namespace.
            is_known = any(inode == number for inode, _ in self._by_netns)
            return self._by_netns.get((number, netns.cookie_of(fd)), OF_HOST) if is_known else OF_HOST


def pod_cgroup(cgroups: str) -> tuple[str, str]:
    """The UID of the pod in a thread's cgroups (man 7 cgroups, /proc/PID/cgroup), and the pod's folder of the rdma
    controller.

    Both are empty if kubelet made no cgroup.  The folder is empty if our cgroup namespace does not contain it.
    """
    # In a cgroup's name, only the line feed is impossible.
    lines = [line.split(":", 2) for line in cgroups.split("\n") if line.count(":") >= 2]
    found = {controllers: name for _, controllers, path in lines if (name := _POD.match(path))}
    uids = {name[1].replace("_", "-") for name in found.values()}
    # Version 2 has all controllers in one hierarchy, without a name.
    folders = [f"{of}{found[of][0]}".lstrip("/") for of in ("rdma", "") if of in found and "/.." not in found[of][0]]
    return (uids.pop(), next(iter(folders), "")) if len(uids) == 1 else ("", "")
