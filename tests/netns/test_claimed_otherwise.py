"""A device that another one has, or a relative of it, and configurations that name it by each key.

The holder is an attachment, or a claim that is prepared and not attached yet.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import drawn
import pytest
from netns.choosing import by_device, by_pf, chosen
from support import pci
from support.topology import Host, Pod, ip

from base.kernel import sysfs
from base.protocol.errors import IoFailure
from base.protocol.spec import Key
from base.state import claims, journal, locks, owned
from base.state.claims import Claim, ClaimedDevice
from base.state.locks import Mode
from base.state.pod import Identity
from base.state.record import Record
from cni import commands
from hardware import users

UID, POD = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f", "a1b2c3d4-0000-4000-8000-000000000001"
VF = ClaimedDevice("rails", "n/p", "vf0", "", pci.VF, "vf", "example.com/vf", "multus")
CLAIM = Claim(UID, "default", "c", (POD,), (VF,), pod_claim="rails")
OURS = f"IgnoreUnknown=1;K8S_POD_UID={POD}"
WORDS = "to claim default/c, and "


@pytest.fixture(autouse=True)
def folder(host: Host, sys_tree: Path, two_vfs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    path = host.tmp_path / "claims"
    monkeypatch.setattr(claims, "FOLDER", str(path))
    monkeypatch.setattr(commands, "CLAIMS_DIR", str(path))
    (sys_tree / "class/net/vf0").mkdir()
    (sys_tree / "class/net/vf0/device").symlink_to(f"../../../bus/pci/devices/{pci.VF}")


def host_device(host: Host, **keys: Any) -> dict[str, Any]:
    return host.conf(kind="host-device", master=..., **keys)


def by_default_route(host: Host) -> dict[str, Any]:
    """No master: the default route leaves by the PF."""
    ip("route", "replace", "default", "dev", "rail0")
    return host.conf(master=...)


def mac(name: str) -> str:
    (link,) = ip("link", "show", "dev", name)
    return str(link["address"])


OF_VF: dict[str, Callable[[Host], dict[str, Any]]] = {
    "deviceID": by_device,
    "pf and vf": lambda host: by_pf(host, vf=0),
    "pciBusID": lambda host: host_device(host, pciBusID=pci.VF),
    "device": lambda host: host_device(host, device="vf0"),
    "hwaddr": lambda host: host_device(host, hwaddr=mac("vf0")),
    "kernelpath": lambda host: host_device(host, kernelpath=f"/sys/devices/pci0000:3a/{pci.VF}"),
    "master": lambda host: host.conf(master="vf0"),
    "ipvlan": lambda host: host.conf(kind="ipvlan", master="vf0"),
}
OF_PF: dict[str, Callable[[Host], dict[str, Any]]] = {
    "pfOnly": lambda host: by_pf(host, pfOnly=True),
    "the PF's device": lambda host: host_device(host, device="rail0"),
    "the PF's deviceID": lambda host: host_device(host, deviceID=pci.PF),
    "the PF's hwaddr": lambda host: host_device(host, hwaddr=mac("rail0")),
}
OVER_PF: dict[str, Callable[[Host], dict[str, Any]]] = {
    "any VF": by_pf,
    "over the PF": lambda host: host.conf(master="rail0"),
    "a VLAN over it": lambda host: host.conf(master="rail0.7"),
    "the default route's": by_default_route,
}
NAMES = OF_VF | OF_PF | OVER_PF
SF = "mlx5_core.sf.4"


def prepared(device: str, kind: str, **members: Any) -> Callable[[Host], None]:
    return lambda _: claims.save(replace(CLAIM, devices=(replace(VF, id=device, kind=kind),), **members))


def attached(device: str) -> Callable[[Host], None]:
    """An attachment has it."""

    def attach(host: Host) -> None:
        link = {"device": device, "incarnation": sysfs.incarnation(device)}
        record = Record("fabric", Key("x", "hpn0"), "/run/netns/x", Identity(1, 2), kind="sriov", link=link, config={})
        with journal.lock(host.state, record.network, record.key) as entry:
            entry.save(replace(record, pod="default/x", link=link | {"netdev": ""}))

    return attach


# The holder, and what it keeps from others.
HOLDERS: dict[str, tuple[Callable[[Host], None], set[str]]] = {
    "a claim of the VF": (prepared(pci.VF, "vf"), {*OF_VF, *OF_PF}),
    "a claim of the VF with attach none": (prepared(pci.VF, "vf"), {*OF_VF, *OF_PF}),
    "a claim of the VF's interface": (prepared("vf0", "master"), {*OF_VF, *OF_PF} - {"master", "ipvlan"}),
    "a claim of the PF": (prepared(pci.PF, "pf"), {*NAMES}),
    "a share of the PF": (prepared(pci.PF, "shared"), {*OF_PF}),
    "a share of the PF by its name": (prepared("rail0", "master"), {*OF_PF}),
    "a share of a VLAN over it": (prepared("rail0.7", "master"), {*OF_PF}),
    "a claim of an SF": (prepared(SF, "sf"), {*OF_PF}),
    "an ended claim of the VF": (prepared(pci.VF, "vf", ended=True), set()),
    "an attachment with the VF": (attached(pci.VF), {*OF_VF, *OF_PF}),
    "an attachment with the PF": (attached(pci.PF), {*OF_VF, *OF_PF, "any VF"}),
    "an attachment with an SF": (attached(SF), {*OF_PF}),
}


@pytest.fixture
def relatives(sys_tree: Path) -> None:
    """An SF of the PF, and an interface that /sys shows as a VLAN over it."""
    (sys_tree / "bus/pci/devices" / pci.PF / SF).mkdir()
    folder = sys_tree / "bus/auxiliary/devices"
    folder.mkdir(parents=True)
    (folder / SF).symlink_to(f"../../pci/devices/{pci.PF}/{SF}")
    ip("link", "add", "rail0.7", "type", "bridge")
    ip("link", "set", "rail0.7", "up")
    (sys_tree / "class/net/rail0.7").mkdir()
    (sys_tree / "class/net/rail0.7/lower_rail0").mkdir()
    (sys_tree / "class/net/rail0/upper_rail0.7").mkdir()


PAIRS = [(holder, name) for holder in HOLDERS for name in NAMES]


@pytest.mark.parametrize(("holder", "name"), drawn.share(PAIRS, "names beside holders"))
def test_each_name_beside_each_holder(host: Host, pod: Pod, relatives: None, holder: str, name: str) -> None:
    """Another pod gets it by no name.  What the holder does not keep fails for another reason, if at all: the veths in
    place of NICs have no VFs."""
    hold, kept = HOLDERS[holder]
    hold(host)
    ip("link", "set", "vf0", "up" if name in ("master", "ipvlan") else "down")
    before = host.picture(pod)
    reply = host.call("ADD", pod, NAMES[name](host))
    error = json.loads(reply.stdout)
    assert (error.get("code") == 109) == (name in kept), error
    if name in kept:
        assert ("belongs to " if "attachment" in holder else WORDS) in error["msg"]
        assert host.picture(pod) == before
    host.ok("DEL", pod, NAMES[name](host))


@pytest.mark.parametrize("name", NAMES)
def test_under_one_lock(host: Host, pod: Pod, relatives: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """hpn node prepares a claim of the PF, of one of its VFs or of its SF under this lock, so each ADD waits for it."""
    monkeypatch.setattr(locks, "SHARED", 0.1)
    conf = NAMES[name](host)
    ip("link", "set", "vf0", "up" if name in ("master", "ipvlan") else "down")
    with owned.lock(SF):
        assert host.refused("ADD", pod, conf)["code"] == 11
    host.call("ADD", pod, conf)
    host.ok("DEL", pod, conf)


def test_a_master_is_for_several_at_once(host: Host, pod: Pod, sys_tree: Path) -> None:
    with owned.lock(pci.PF, mode=Mode.SHARED):
        host.ok("ADD", pod)
    host.ok("DEL", pod)


def test_an_ended_claim_whose_pod_is_attached(host: Host, pod: Pod) -> None:
    """Its pod has the device until its DEL, which the error names."""
    claims.save(replace(CLAIM, ended=True))
    record = Record("x", Key("x", "hpn0"), "/n", Identity(1, 2), kind="macvlan", link={}, config={}, claim=f"{UID}/0")
    with journal.lock(host.state, record.network, record.key) as entry:
        entry.save(record)
        for conf in (by_device(host), by_pf(host, vf=0)):
            error = host.refused("ADD", pod, conf)
            assert (error["code"], "pod is not detached yet; if that stays, run hpn gc" in error["msg"]) == (109, True)
        entry.forget()
    assert "reports no VF" in host.refused("ADD", pod, by_device(host))["msg"]


def test_any_free_vf_is_another_one(host: Host, pod: Pod) -> None:
    """The first free VF is the one that the scheduler has just allocated."""
    assert chosen(host, pod) == pci.VF
    claims.save(CLAIM)
    assert chosen(host, pod) == pci.ANOTHER


def test_a_device_that_the_pod_drives_itself(host: Host, pod: Pod, sys_tree: Path) -> None:
    function = sys_tree / "bus/pci/devices" / pci.VF
    (function / "net/vf0").rmdir()
    (function / "driver").symlink_to("/sys/bus/pci/drivers/vfio-pci")
    claims.save(CLAIM)
    for conf in (host_device(host, pciBusID=pci.VF), by_pf(host, vf=0)):
        error = host.refused("ADD", pod, conf)
        assert (error["code"], WORDS in error["msg"]) == (109, True), error


def test_the_claims_own_pod(host: Host, pod: Pod) -> None:
    """It has the device, and the veth in place of the PF reports no VF."""
    claims.save(CLAIM)
    error = host.refused("ADD", pod, by_device(host), CNI_ARGS=OURS)
    assert f"rail0 reports no VF {pci.VF}" in error["msg"]


@pytest.mark.parametrize(("kind", "code"), [("master", 0), ("pf", 109)])
def test_a_master_with_a_claim(host: Host, pod: Pod, kind: str, code: int) -> None:
    """Pods share a master that a claim has; a move would take it away from the claim's pod."""
    claims.save(
        Claim(UID, "default", "c", (POD,), (ClaimedDevice("r", "n/p", "d", "", "fabric", kind, "e.com/r", "chain"),))
    )
    assert host.call("ADD", pod, host.conf(master="fabric")).code == code
    host.ok("DEL", pod, host.conf(master="fabric"))
    error = host.refused("ADD", pod, host_device(host, device="fabric"))
    assert (error["code"], WORDS in error["msg"]) == (109, True), error


@contextmanager
def lost(file: Path, number: int = errno.EIO) -> Iterator[None]:
    """While the file cannot be opened, by default because of the disk."""

    def read(path: Any, *rest: Any, **more: Any) -> int:
        if os.fspath(path) == f"{file}":
            raise OSError(number, os.strerror(number))
        return opened(path, *rest, **more)

    opened = os.open
    file.write_bytes(file.read_bytes())  # or it is remembered
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", read)
        yield


def damaged(file: Path) -> AbstractContextManager[None]:
    file.write_bytes(file.read_bytes()[:-9])
    return nullcontext()


@pytest.mark.parametrize("spoil", [lost, damaged])
def test_a_record_that_cannot_be_read(host: Host, pod: Pod, sys_tree: Path, spoil: Any) -> None:
    """It keeps no device that is on the host from others.  It keeps one that a pod may have.  A veth in place of a VF
    fails for another reason, as without that record."""
    moved = (host_device(host, pciBusID=pci.VF), by_device(host), by_pf(host, vf=0))
    without = [host.refused("ADD", pod, named) for named in moved]
    attached(pci.VF)(host)
    (record,) = (host.state / "attachments/fabric").glob("*.json")
    ip("link", "set", "vf0", "up")
    with spoil(record):
        host.ok("ADD", pod, host.conf(master="vf0"))
        host.ok("DEL", pod, host.conf(master="vf0"))
        ip("link", "set", "vf0", "down")
        assert [host.refused("ADD", pod, named) for named in moved] == without
    function = sys_tree / "bus/pci/devices" / pci.VF
    (function / "net/vf0").rmdir()
    (function / "driver").symlink_to("/sys/bus/pci/drivers/vfio-pci")
    for named in (host_device(host, pciBusID=pci.VF), by_pf(host, vf=0), by_pf(host, pfOnly=True)):
        with spoil(record):
            error = host.refused("ADD", pod, named)
        assert (error["code"], f"{record}; if that pod has ended" in error["msg"]) == (5, True), error


def test_a_master_that_a_lost_record_may_have(host: Host, pod: Pod) -> None:
    """A master stays on the host, so only its record shows that a pod is over it."""
    host.ok("ADD", pod, host.conf())
    (record,) = (host.state / "attachments").glob("*/*.json")
    with lost(record):
        error = host.refused("ADD", pod, host_device(host, device="rail0"), CNI_IFNAME="net9")
    assert (error["code"], "may be the master of an attachment" in error["msg"]) == (5, True), error
    host.ok("DEL", pod, host.conf())


def test_provisioning_beside_a_lost_record(host: Host) -> None:
    """It changes no number of VFs, because no one knows which of them the record's pod has."""
    attached(pci.VF)(host)
    (record,) = (host.state / "attachments/fabric").glob("*.json")
    with lost(record), pytest.raises(IoFailure, match="if its pod has ended, remove the file"):
        users.owners()


def test_a_record_that_cannot_be_read_now(host: Host, pod: Pod) -> None:
    """The next attempt may find that it is the device's."""
    attached(pci.VF)(host)
    (record,) = (host.state / "attachments/fabric").glob("*.json")
    with lost(record, errno.EMFILE):
        assert host.refused("ADD", pod, by_device(host))["code"] == 11
