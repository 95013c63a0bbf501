"""The plugin's work for a PCI function behind an attachment, without a real function: /sys is the test's own tree.

The lab covers real functions.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from netns.choosing import by_device, by_pf, chosen
from support import pci
from support.topology import Host, Pod, ip

from base.kernel import sysfs
from base.kernel.vf import VfSettings
from base.protocol.spec import Key
from base.state import durable, journal, locks, owned
from base.state import pod as pods
from base.state.record import Record
from cni.kinds.sriov.attributes import Plan


@pytest.fixture
def device_info(host: Host, node_file: Path) -> Path:
    """The file that Multus requests."""
    return host.tmp_path / "devinfo/cni/default-rail0-0123_hpn0"


def asking_for(device_info: Path, host: Host) -> dict[str, object]:
    return host.conf(runtimeConfig={"CNIDeviceInfoFile": str(device_info)})


@pytest.mark.parametrize("before", [None, '{"type": "pci", "future": 1}'], ids=["ours", "a device plugin's"])
@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_the_device_information_goes_with_the_attachment(
    host: Host, pod: Pod, sys_tree: Path, device_info: Path, command: str, before: str | None
) -> None:
    if before:
        device_info.parent.mkdir(parents=True)
        device_info.write_text(before)
    conf = asking_for(device_info, host)
    host.ok("ADD", pod, conf)
    assert json.loads(device_info.read_text())["pci"]["pci-address"] == pci.PF
    host.ok(command, pod, conf | {"cni.dev/valid-attachments": []})
    assert [(p.name, p.read_text()) for p in device_info.parent.iterdir()] == (
        [(device_info.name, before)] * bool(before)
    )


def test_the_device_information_of_an_add_that_failed(host: Host, pod: Pod, sys_tree: Path, device_info: Path) -> None:
    """A failed ADD leaves no device information.  ADD writes it last except for the journal; a directory in place of
    the journal's file fails that write."""
    conf = asking_for(device_info, host)
    with host.meanwhile(pod, conf) as reply:
        host.record(pod).with_suffix(".json.tmp").mkdir()
    assert json.loads(reply.result().stdout)["code"] == 5
    assert list(device_info.parent.iterdir()) == []
    host.record(pod).with_suffix(".json.tmp").rmdir()
    host.ok("DEL", pod, conf)
    assert host.state_files() == set()


def owned_by(pod: Pod, host: Host, device: str = pci.VF, **wanted: Any) -> Path:
    """Write a record that gives this VF to the pod, in the network fabric and with these attributes; return its
    path."""
    with pods.open_netns(host.request("ADD", pod, {})) as opened:
        identity = opened.identity
    plan = Plan(
        device=device,
        incarnation=sysfs.incarnation(device),
        pf=pci.PF,
        number=0,
        netdev="rail0v1",
        home=None,
        before=VfSettings(),
        wanted=wanted,
        mac="",
        mtu=0,
        rdma=[],
        rdma_devs=[],
    )
    key = Key(pod.name, "net1")
    record = Record("fabric", key, pod.path, identity, "sriov", plan.to_json(), {"name": "fabric"})
    with journal.lock(host.state, "fabric", key) as entry:
        entry.save(record)
        return entry.path


def test_a_device_that_another_attachment_has(host: Host, make_pod: Callable[[], Pod], sys_tree: Path) -> None:
    one, two = make_pod(), make_pod()
    owned_by(one, host)
    before = host.picture(one, two)
    error = host.refused("ADD", two, by_device(host))
    assert error["code"] == 109
    assert error["msg"].startswith(f"deviceID '{pci.VF}' belongs to ")
    assert "network fabric" in error["msg"]
    assert host.picture(one, two) == before


def test_a_device_that_a_dead_pod_has(host: Host, make_pod: Callable[[], Pod], sys_tree: Path) -> None:
    """ADD undoes the attachment of a dead pod and checks its device again, which has no driver here."""
    one, two = make_pod(), make_pod()
    record = owned_by(one, host)
    one.gone()
    error = host.refused("ADD", two, by_device(host))
    assert (error["code"], "has no driver" in error["msg"]) == (101, True)
    assert not record.exists()


def test_a_device_of_a_dead_pod_that_cannot_be_put_back(
    host: Host, make_pod: Callable[[], Pod], sys_tree: Path
) -> None:
    """ADD keeps the record of a dead pod if it cannot restore the VF.  The veth in place of the PF reports nothing
    about VFs, so the VLAN may still be set."""
    one, two = make_pod(), make_pod()
    record = owned_by(one, host, vlan=[5, 0, "802.1q"])
    one.gone()
    error = host.refused("ADD", two, by_device(host))
    assert (error["code"], "reports no VF 0" in error["msg"]) == (101, True)
    assert record.exists()


@pytest.mark.parametrize("change", [{"boot": "0" * 8}, {"incarnation": 1}], ids=["boot", "incarnation"])
def test_a_device_that_is_another_now(
    host: Host, make_pod: Callable[[], Pod], sys_tree: Path, change: dict[str, Any]
) -> None:
    """A record of an older boot, or of an earlier VF at the address, holds no device."""
    one, two = make_pod(), make_pod()
    record = owned_by(one, host)
    body = durable.read(record)
    assert body
    of_link = {k: v for k, v in change.items() if k in body["link"]}
    durable.write(record, {**body, **({} if of_link else change), "link": body["link"] | of_link})
    error = host.refused("ADD", two, by_device(host))
    assert (error["code"], "has no driver" in error["msg"]) == (101, True)
    assert record.exists()


def test_a_sys_that_is_hidden(host: Host, make_pod: Callable[[], Pod], sys_tree: Path) -> None:
    """A hidden /sys does not prove that a device is gone: the record stays, and DEL succeeds once /sys is back."""
    one, two = make_pod(), make_pod()
    record, key = owned_by(one, host), {"CNI_IFNAME": "net1"}
    aside = sys_tree.rename(host.tmp_path / "aside")
    sys_tree.mkdir()
    before = (record.read_text(), one.links(), two.links())
    ours = host.conf(name="fabric")
    required = host.conf(rdma={"required": True})
    moved = host.conf(kind="host-device", master=..., device="rail0")
    for pod, command, conf, environ in (
        (one, "DEL", ours, key),
        *((two, "ADD", conf, {}) for conf in (by_device(host), by_pf(host), by_pf(host, pfOnly=True), moved, required)),
        *((two, "STATUS", conf, {}) for conf in (by_pf(host), moved)),
    ):
        error = host.refused(command, pod, conf, **environ)
        code = 50 if command == "STATUS" else 105
        assert (error["code"], "shows no devices" in error["msg"]) == (code, True), (command, conf, error)
    host.call("GC", None, ours | {"cni.dev/valid-attachments": []})
    assert (record.read_text(), one.links(), two.links()) == before
    sys_tree.rmdir()
    aside.rename(sys_tree)
    host.ok("DEL", one, ours, **key)
    assert not record.exists()


def test_one_at_a_time_decides_over_a_pf(host: Host, pod: Pod, sys_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD decides the owner of a VF under its PF's lock, and writes the record before it releases the lock."""
    monkeypatch.setattr(locks, "SHARED", 0.1)
    by_host_device = host.conf(kind="host-device", master=..., pciBusID=pci.VF)
    with owned.lock(pci.PF):
        assert host.refused("ADD", pod, by_device(host))["code"] == 11
        assert host.refused("ADD", pod, by_host_device)["code"] == 11
    assert host.refused("ADD", pod, by_device(host))["code"] == 101
    assert host.refused("ADD", pod, by_host_device)["code"] == 101


@pytest.mark.parametrize(
    ("keys", "code"),
    [({"deviceID": pci.VF}, 109), ({"pf": "rail0", "vf": 0}, 109), ({"pf": "rail0"}, 101)],
    ids=["deviceID", "vf", "any"],
)
def test_a_device_that_another_attachment_drives(
    host: Host, make_pod: Callable[[], Pod], sys_tree: Path, keys: dict[str, Any], code: int
) -> None:
    """The VF has a userspace driver, so only the journal shows its owner."""
    function = sys_tree / "bus/pci/devices" / pci.VF
    (function / "driver").symlink_to("../../drivers/vfio-pci")
    (function.parent / pci.PF / "virtfn0").symlink_to(f"../{pci.VF}")
    one, two = make_pod(), make_pod()
    record = owned_by(one, host)
    before = host.picture(one, two)
    conf = host.conf(kind="sriov", master=..., **keys)
    error = host.refused("ADD", two, conf)
    assert (error["code"], "network fabric" in error["msg"]) == (code, code == 109), error
    assert host.picture(one, two) == before
    one.gone()
    error = host.refused("ADD", two, conf)
    assert (error["code"], record.exists()) == (101, False), error


@pytest.mark.usefixtures("two_vfs")
def test_any_free_vf(host: Host, make_pod: Callable[[], Pod]) -> None:
    """ADD chooses the first VF that neither an attachment nor the host uses."""
    one, two = make_pod(), make_pod()
    assert chosen(host, two) == pci.VF
    ip("link", "set", "vf0", "up")
    assert chosen(host, two) == pci.ANOTHER
    ip("link", "set", "vf0", "down")
    owned_by(one, host)
    assert chosen(host, two) == pci.ANOTHER
    assert chosen(host, two, vf=1) == pci.ANOTHER
    error = host.refused("ADD", two, by_pf(host, vf=0))
    assert (error["code"], "belongs to" in error["msg"]) == (109, True)
    error = host.refused("ADD", two, by_pf(host, vf=2))
    assert (error["code"], "has VFs 0 to 1" in error["msg"]) == (7, True)
    ip("link", "set", "vf1", "up")
    error = host.refused("ADD", two, by_pf(host))
    assert (error["code"], "has no free VF" in error["msg"]) == (101, True)


@pytest.mark.usefixtures("two_vfs")
def test_a_dead_owner_before_a_slow_one(
    host: Host, make_pod: Callable[[], Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADD frees a dead pod's VF, and does not wait for the command of a living pod with another VF."""
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.0)
    slow, dead, new = make_pod(), make_pod(), make_pod()
    living, freed = owned_by(slow, host), owned_by(dead, host, device=pci.ANOTHER)
    dead.gone()
    with journal.lock(host.state, "fabric", Key(slow.name, "net1")):
        error = host.refused("ADD", new, by_pf(host))
        assert error["code"] != 11, error
    assert (living.exists(), freed.exists()) == (True, False)


@pytest.mark.usefixtures("two_vfs")
def test_a_pf_in_switchdev_mode(host: Host, pod: Pod, sys_tree: Path) -> None:
    """ADD queries the PF's own interface, and not the VF's representor, which the kernel lists first."""
    ip("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    for name, port in (("eth0", "pf0vf0"), ("rail0", "p0")):
        (sys_tree / "bus/pci/devices" / pci.PF / "net" / name).mkdir(exist_ok=True)
        (sys_tree / "class/net" / name).mkdir(exist_ok=True)
        (sys_tree / "class/net" / name / "phys_port_name").write_text(f"{port}\n")
    assert chosen(host, pod) == pci.VF
    error = host.refused("ADD", pod, by_device(host))
    assert (error["code"], f"rail0 reports no VF {pci.VF}" in error["msg"]) == (101, True)


@pytest.mark.usefixtures("two_vfs")
def test_a_whole_pf(host: Host, make_pod: Callable[[], Pod]) -> None:
    """ADD refuses a PF with a VF in a pod, and one that the host uses for its own network."""
    one, two = make_pod(), make_pod()
    conf = by_pf(host, pfOnly=True)
    record = owned_by(one, host)
    assert host.refused("ADD", two, conf)["code"] == 109
    body = durable.read(record)
    assert body
    itself = {"device": pci.PF, "incarnation": sysfs.incarnation(pci.PF), "netdev": "rail0"}
    durable.write(record, body | {"link": body["link"] | itself})
    error = host.refused("ADD", two, conf)
    assert (error["code"], error["msg"].startswith("pf 'rail0' belongs to ")) == (109, True), error
    durable.write(record, body | {"link": body["link"] | itself | {"home": {"altnames": ["storage9"]}}})
    error = host.refused("ADD", two, by_pf(host, pfOnly=True) | {"pf": "storage9"})
    assert (error["code"], error["msg"].startswith("pf 'storage9' belongs to ")) == (109, True), error
    record.unlink()
    ip("address", "add", "192.0.2.1/24", "dev", "rail0")
    error = host.refused("ADD", two, conf)
    assert (error["code"], "has 192.0.2.1/24 on the host" in error["msg"]) == (7, True)
    ip("route", "add", "default", "via", "192.0.2.2")
    error = host.refused("ADD", two, conf)
    assert (error["code"], "the host's default route uses 'rail0'" in error["msg"]) == (7, True)
    error = host.refused("ADD", two, conf | {"pf": "vf1"})
    assert (error["code"], "is a VF" in error["msg"]) == (7, True)
    error = host.refused("ADD", two, by_device(host) | {"deviceID": pci.ANOTHER, "pfOnly": True})
    assert (error["code"], error["msg"]) == (7, f"deviceID '{pci.ANOTHER}' is a VF; remove pfOnly")
    error = host.refused("ADD", two, by_device(host) | {"deviceID": pci.PF})
    assert (error["code"], "is a PF; let the resource offer its VFs" in error["msg"]) == (7, True)


def test_a_whole_function_of_a_userspace_driver(host: Host, pod: Pod, sys_tree: Path) -> None:
    """It has no interface to move, and a repeated ADD would find none either."""
    (sys_tree / "bus/pci/devices" / pci.PF / "net/rail0").rmdir()
    (sys_tree / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (sys_tree / "bus/pci/devices" / pci.PF / "driver").symlink_to("../../drivers/vfio-pci")
    error = host.refused("ADD", pod, by_device(host) | {"deviceID": pci.PF, "pfOnly": True})
    assert (error["code"], error["msg"].partition(";")[0]) == (
        101,
        f"deviceID '{pci.PF}' is not a PCI network interface of this host",
    )


def test_a_device_that_is_no_vf(host: Host, pod: Pod, sys_tree: Path) -> None:
    whole = by_device(host) | {"deviceID": pci.PF}
    error = host.refused("ADD", pod, whole)
    assert (error["code"], "is not a VF; move the function itself: over Ethernet by" in error["msg"]) == (7, True)
    ip("address", "add", "192.0.2.1/24", "dev", "rail0")
    error = host.refused("ADD", pod, whole | {"pfOnly": True})
    assert (error["code"], error["msg"].startswith("pfOnly: 'rail0' has 192.0.2.1/24 on the host")) == (7, True), error
    error = host.refused("ADD", pod, by_device(host) | {"deviceID": "0000:3b:1f.7"})
    assert (
        error["code"],
        "is not a PCI function of this host now; if kubelet allocated it, delete the pod" in error["msg"],
    ) == (101, True)
