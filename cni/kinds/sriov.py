"""An SR-IOV VF: configured through its PF, moved into the pod with its RDMA devices, and put back as it was.

The VF is known by its PCI address wherever it is and whatever it is called: under /sys while it is the
host's, by IFLA_PARENT_DEV_NAME in the pod.  When a pod's namespace dies, the kernel brings netdev and RDMA
devices home by itself, late and under the pod's name (default_device_exit_net, rdma_dev_exit_net).
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, cast

from cni import journal, rdma
from cni.errors import CheckFailed, InvalidConfig, LinkUnavailable, TryAgain, doing
from cni.kernel import rtnl, sysfs, vf
from cni.kernel.rtnl import (
    IFLA_ADDRESS,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_MTU,
    IFLA_NET_NS_FD,
    IFLA_TXQLEN,
    Link,
    Rtnl,
    attr,
    text,
    u32,
)
from cni.kernel.vf import Vf
from cni.pod import Pod
from cni.result import Interface
from cni.spec import Json

if TYPE_CHECKING:
    # Not at run time: DEL does without pydantic.
    from cni.config import NetConf, Sriov

# A dying namespace gives its devices back from a work queue: usually within 0.1 s.
_HOME_TIMEOUT: Final = 5.0
_POLL: Final = 0.02


@dataclass(frozen=True)
class Plan:
    """One VF: what it was on the host, and what it is to be.

    ``number`` is its index on the PF, ``index`` its ifindex in the pod once it is there; ``before`` and
    ``wanted`` are attributes on the PF (kernel/vf.py), ``rdma`` the indices and names of the RDMA devices
    that move with it.
    """

    device: str
    pf: str
    number: int
    netdev: str
    netdev_mac: str
    netdev_mtu: int
    netdev_txqlen: int
    netdev_alias: str
    netdev_up: bool
    before: Json
    wanted: Json
    mtu: int
    rdma: rdma.Devices
    index: int = 0


@contextmanager
def claiming(conf: "NetConf") -> Iterator[None]:
    """Kind.claiming: one at a time decides over a PF's VFs, whether it names one of them or takes any."""
    wanted = cast("Sriov", conf.attach)
    function = sysfs.function(wanted.deviceID) if wanted.deviceID else None
    pf = function.pf if function else sysfs.address_of(wanted.pf) if wanted.pf else ""
    with journal.device_locked(conf.where.state_dir, pf):
        yield


def plan(conf: "NetConf", host: Rtnl, pod: Pod) -> Json:  # noqa: ARG001  # a Kind's
    """Kind.plan."""
    wanted = cast("Sriov", conf.attach)
    function = _function(wanted.deviceID) if wanted.deviceID else _free(conf, host)
    netdev = host.link(function.netdevs[0])
    if netdev is None:
        raise TryAgain(f"{function.netdevs[0]} of {function.address} is being renamed or moved")
    pf = _pf(function.pf, host)
    number = sysfs.vfs(function.pf).index(function.address)
    before = vf.parse(pf.vfs).get(number)
    if before is None:
        raise LinkUnavailable(f"{pf.name} tells nothing of VF {number} ({function.address}); is it its PF?")
    if wanted.mtu > pf.mtu:
        raise InvalidConfig(f"mtu {wanted.mtu} is above {pf.mtu}, that of PF {pf.name!r}; lower it or raise that")
    return asdict(
        Plan(
            device=function.address,
            pf=function.pf,
            number=number,
            netdev=netdev.name,
            netdev_mac=netdev.mac,
            netdev_mtu=netdev.mtu,
            netdev_txqlen=netdev.txqlen,
            netdev_alias=netdev.alias,
            netdev_up=netdev.up,
            before=asdict(before),
            wanted=wanted.attributes() | ({"mac": conf.mac} if conf.mac else {}),
            mtu=wanted.mtu,
            rdma=rdma.to_move(wanted.rdma, function),
        )
    )


def attach(plan: Json, host: Rtnl, pod: Pod, ifname: str) -> Link:
    """Kind.attach: attributes on the PF, then one message that moves and renames, then the RDMA devices."""
    p = Plan(**plan)
    netdev = _at_home(p)
    link = host.link(netdev)
    if link is None:
        raise TryAgain(f"{netdev} of {p.device} is being renamed or moved")
    if mac := p.wanted.get("mac"):
        _set_mac(host, p, link, mac)
    for name, value in p.wanted.items():
        _set_attribute(host, p, name, value)
    moving = [attr(IFLA_NET_NS_FD, u32(pod.fd)), attr(IFLA_IFNAME, text(ifname))]
    with doing(f"moving {netdev} ({p.device}) to {pod.path} as {ifname}"):
        host.set_link(link.index, *moving, *([attr(IFLA_MTU, u32(p.mtu))] if p.mtu else []))
    there = find(plan, pod, ifname)
    if there is None or there.name != ifname:
        raise LinkUnavailable(f"{p.device} did not arrive in {pod.path} as {ifname}")
    rdma.give(p.rdma, pod)
    return there


def find(plan: Json, pod: Pod, ifname: str) -> Link | None:
    """Kind.find: the VF's netdev, under the pod's name or the one it came with."""
    p = Plan(**plan)
    ways: list[Json] = [{"index": p.index}] if p.index else [{"name": ifname}, {"name": p.netdev}]
    return next((link for way in ways if (link := pod.rtnl.link(**way)) and link.device == p.device), None)


def detach(plan: Json, pod: Pod | None, ifname: str) -> None:
    """Kind.detach: home, and as it was.  A VF that is no more has nothing to restore."""
    p = Plan(**plan)
    if sysfs.function(p.device) is None:
        return
    with rtnl.opened() as host:
        if pod:
            _bring_home(p, plan, pod, ifname)
        netdev = _at_home(p)
        _restore_netdev(host, p, netdev)
        _restore_attributes(host, p)
        rdma.settle(p.rdma, p.device)


def check(plan: Json, host: Rtnl, pod: Pod, expected: Interface) -> Link:
    """Kind.check."""
    p = Plan(**plan)
    link = find(plan, pod, expected.name)
    if link is None or link.name != expected.name:
        raise CheckFailed(f"{expected.name} in {pod.path} is not VF {p.device}")
    if expected.mac and link.mac != expected.mac.lower():
        raise CheckFailed(f"{expected.name} has MAC {link.mac}, prevResult says {expected.mac}")
    if not link.up:
        raise CheckFailed(f"{expected.name} is down")
    now = asdict(_attributes(host, p))
    for name, value in p.wanted.items():
        if now[name] != (tuple(value) if isinstance(value, list) else value):
            raise CheckFailed(f"VF {p.device} has {name} {now[name]} on its PF, ADD set {value}")
    rdma.check(p.rdma, pod)
    return link


def status(conf: "NetConf", host: Rtnl) -> None:
    """Kind.status: with ``pf``, a free VF of it; with ``deviceID``, nothing that another attachment would tell."""
    wanted = cast("Sriov", conf.attach)
    if wanted.pf:
        _free(conf, host)


def _function(address: str) -> sysfs.Function:
    """The VF, with its netdev.  Waits for one that a dying namespace still has.  Raises CniError."""
    deadline = time.monotonic() + _HOME_TIMEOUT
    while True:
        function = sysfs.function(address)
        if function is None:
            raise LinkUnavailable(f"deviceID {address!r} is no PCI function of this host; see: ls /sys/bus/pci/devices")
        if not function.pf:
            raise InvalidConfig(f"deviceID {address!r} is no VF; give one of its VFs, see: ls -l virtfn* beside it")
        if function.netdevs:
            return function
        if function.driver in ("", "vfio-pci", "uio_pci_generic", "igb_uio"):
            raise LinkUnavailable(
                f"deviceID {address!r} has no network interface: its driver is {function.driver or 'none'}; "
                "bind it to its network driver"
            )
        if time.monotonic() > deadline:
            raise TryAgain(f"deviceID {address!r} is in another namespace still, perhaps one that is being removed")
        time.sleep(_POLL)


def _free(conf: "NetConf", host: Rtnl) -> sysfs.Function:
    """The first VF of the PF that nobody has: no attachment, and not up on the host.  Raises LinkUnavailable."""
    pf, owners = cast("Sriov", conf.attach).pf, journal.devices(conf.where.state_dir)
    address = sysfs.address_of(pf)
    addresses = sysfs.vfs(address) if address else ()
    if not addresses:
        raise LinkUnavailable(f"pf {pf!r} has no VFs; write their number to /sys/class/net/{pf}/device/sriov_numvfs")
    for candidate in addresses:
        function = sysfs.function(candidate)
        if candidate in owners or function is None or not function.netdevs:
            continue
        link = host.link(function.netdevs[0])
        if link and not link.up:
            return function
    raise LinkUnavailable(f"pf {pf!r} has no free VF: all {len(addresses)} are attached, up on the host, or elsewhere")


def _pf(address: str, host: Rtnl) -> Link:
    """The PF's netdev with what it says of its VFs."""
    function = sysfs.function(address)
    link = None
    if function and function.netdevs:
        link = host.link(function.netdevs[0], filters=rtnl.RTEXT_FILTER_SKIP_STATS | vf.RTEXT_FILTER_VF)
    if link is None:
        raise LinkUnavailable(f"PF {address} has no network interface; is its driver bound, or is it in a namespace?")
    return link


def _attributes(host: Rtnl, p: Plan) -> Vf:
    return vf.parse(_pf(p.pf, host).vfs)[p.number]


def _set_attribute(host: Rtnl, p: Plan, name: str, value: object) -> None:
    value = tuple(value) if isinstance(value, list) else value
    with doing(f"setting {name} {value} of VF {p.number} ({p.device}) on its PF"):
        host.set_link(_pf(p.pf, host).index, vf.set_attribute(p.number, name, value))


def _set_mac(host: Rtnl, p: Plan, link: Link, mac: str) -> None:
    """The VF's own MAC.  A driver whose PF has given it one allows another only to a trusted VF (igb, i40e)."""
    body = attr(IFLA_ADDRESS, bytes.fromhex(mac.replace(":", "")))
    with doing(f"setting MAC {mac} of {link.name} ({p.device})"):
        try:
            host.set_link(link.index, body, down=True)
        except OSError as e:
            if e.errno not in (errno.EADDRNOTAVAIL, errno.EPERM):
                raise
            trust = _attributes(host, p).trust
            _set_attribute(host, p, "trust", value=True)
            try:
                host.set_link(link.index, body, down=True)
            finally:
                _set_attribute(host, p, "trust", value=bool(trust))


def _bring_home(p: Plan, plan: Json, pod: Pod, ifname: str) -> None:
    """RDMA devices, then the netdev: moved and renamed by one message."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        rdma.take(p.rdma, pod, own)
        link = find(plan, pod, ifname)
        if link is None:
            return
        with doing(f"moving {link.name} ({p.device}) back from {pod.path}"):
            try:
                pod.rtnl.set_link(link.index, attr(IFLA_NET_NS_FD, u32(own)), attr(IFLA_IFNAME, text(p.netdev)))
            except OSError as e:
                # The name is taken on the host: the kernel moves it all the same, or not at all if both are.
                if e.errno != errno.EEXIST:
                    raise
                if find(plan, pod, ifname):
                    free = f"vf{link.index}{os.getpid() % 10_000}"
                    pod.rtnl.set_link(link.index, attr(IFLA_IFNAME, text(free)))
                    pod.rtnl.set_link(link.index, attr(IFLA_NET_NS_FD, u32(own)))
    finally:
        os.close(own)


def _at_home(p: Plan) -> str:
    """The name of the VF's netdev on the host.  Waits for a dying namespace.  Raises TryAgain."""
    return _function(p.device).netdevs[0]


def _restore_netdev(host: Rtnl, p: Plan, netdev: str) -> None:
    link = host.link(netdev)
    if link is None:
        raise TryAgain(f"{netdev} of {p.device} is being renamed or moved")
    if link.mac != p.netdev_mac:
        _set_mac(host, p, link, p.netdev_mac)
    changed = [
        body
        for differs, body in (
            (link.mtu != p.netdev_mtu, attr(IFLA_MTU, u32(p.netdev_mtu))),
            (link.txqlen != p.netdev_txqlen, attr(IFLA_TXQLEN, u32(p.netdev_txqlen))),
            (link.alias != p.netdev_alias, attr(IFLA_IFALIAS, p.netdev_alias.encode())),
        )
        if differs
    ]
    with doing(f"restoring {netdev} ({p.device})"):
        if changed or link.up:
            host.set_link(link.index, *changed, down=True)
        if netdev != p.netdev:
            # Somebody else's name now is not taken back; the VF is known by its address.
            with suppress(FileExistsError):
                host.rename(link.index, p.netdev)
        if p.netdev_up:
            host.set_up(link.index)


def _restore_attributes(host: Rtnl, p: Plan) -> None:
    """Every attribute on the PF as it was, whoever changed it.  Raises OSError naming the one that will not."""
    before = Vf.from_json(p.before)
    for name in before.differing(_attributes(host, p)):
        _set_attribute(host, p, name, getattr(before, name))
