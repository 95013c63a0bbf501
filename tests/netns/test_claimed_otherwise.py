"""A device that a claim has, not attached yet, and configurations of other pods that name it by each key."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from netns.choosing import by_device, by_pf, chosen
from support import pci
from support.topology import Host, Pod, ip

from base.state import claims
from base.state.claims import Claim, Device
from cni import commands

UID, POD = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f", "a1b2c3d4-0000-4000-8000-000000000001"
VF = Device("rails", "n/p", "vf0", "", pci.VF, "vf", "example.com/vf", "multus")
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


def mac(name: str) -> str:
    (link,) = ip("link", "show", "dev", name)
    return str(link["address"])


NAMES: dict[str, Callable[[Host], dict[str, Any]]] = {
    "deviceID": by_device,
    "pf and vf": lambda host: by_pf(host, vf=0),
    "pfOnly": lambda host: by_pf(host, pfOnly=True),
    "pciBusID": lambda host: host_device(host, pciBusID=pci.VF),
    "device": lambda host: host_device(host, device="vf0"),
    "hwaddr": lambda host: host_device(host, hwaddr=mac("vf0")),
    "kernelpath": lambda host: host_device(host, kernelpath=f"/sys/devices/pci0000:3a/{pci.VF}"),
    "the PF's device": lambda host: host_device(host, device="rail0"),
    "master": lambda host: host.conf(master="vf0"),
    "ipvlan": lambda host: host.conf(kind="ipvlan", master="vf0"),
}


@pytest.mark.parametrize("name", NAMES)
def test_another_pod_gets_it_by_no_name(host: Host, pod: Pod, name: str) -> None:
    claims.save(CLAIM)
    ip("link", "set", "vf0", "up" if name in ("master", "ipvlan") else "down")
    before = host.picture(pod)
    error = host.refused("ADD", pod, NAMES[name](host))
    assert (error["code"], WORDS in error["msg"]) == (109, True), error
    assert host.picture(pod) == before


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
    claims.save(Claim(UID, "default", "c", (POD,), (Device("r", "n/p", "d", "", "fabric", kind, "e.com/r", "chain"),)))
    assert host.call("ADD", pod, host.conf(master="fabric")).code == code
    host.ok("DEL", pod, host.conf(master="fabric"))
    error = host.refused("ADD", pod, host_device(host, device="fabric"))
    assert (error["code"], WORDS in error["msg"]) == (109, True), error
