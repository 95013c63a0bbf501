"""hpn node's two ways to a device, the device plugin and claims: what kubelet got by Allocate, Prepare gives to no
claim."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from support.dra_api import DraApi, serving
from support.node_dra import dra_kubelet
from support.node_kubelet import kubelet
from support.node_process import NodeProcess
from support.pod_resources import entry, keep, listing
from support.sysfs_tree import Tree
from support.topology import Host, until

UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
ASKED = ("default", "rails", UID)


def masters(by: str) -> list[dict[str, Any]]:
    """A resource for each end of the host's veth pair, with one share."""
    common = {"kind": "master", "count": 1, "by": by}
    return [
        {"name": f"example.com/{name}", **common, "selectors": {"ifNames": [name], "kinds": ["netdev"]}}
        for name in ("rail0", "fabric")
    ]


def claim(pool: str, device: str) -> dict[str, Any]:
    results = [{"request": "rails", "driver": "hpn-cni.io", "pool": pool, "device": device}]
    return {
        "metadata": {"name": "rails", "namespace": "default", "uid": UID},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "a", "uid": UID}],
        },
    }


@pytest.fixture
def server(host: Host, tmp_path: Path) -> Iterator[tuple[DraApi, Path]]:
    with serving(tmp_path) as found:
        yield found


def test_a_pods_device_goes_to_no_claim(server: tuple[DraApi, Path]) -> None:
    """Allocate and Prepare consult one ledger, also before kubelet lists the pod.  The other device shows that the
    change of ``by`` is complete."""
    made, kubeconfig = server
    # A socket's path is limited to 107 bytes.
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process = NodeProcess(Path(folder), masters("devicePlugin"), "--kubeconfig", str(kubeconfig))
        process.registry.mkdir(parents=True)
        with listing(process.kubelet), process:
            process.says("serves example.com/rail0")
            with kubelet(process.registry / "hpn-example.com_rail0.sock") as plugin:
                plugin.allocate("rail0-0")
            process.write(masters("dra"))
            process.reload()
            until(lambda: "fabric" in made.devices())
            assert "rail0" not in made.devices()
            pool, device = made.devices()["fabric"][0], made.devices()["fabric"][1]["name"]
            with dra_kubelet(process.registry / "hpn-hpn-cni.io.sock") as dra:
                made.claim = claim(pool.replace("fabric", "rail0"), device.replace("fabric", "rail0"))
                error = dra.prepare(ASKED)[UID].error
                assert error.endswith(
                    ": a pod has it from the device plugin, or kubelet has not listed its pods' devices yet; it is "
                    "tried again until that pod has ended"
                )
                made.claim = claim(pool, device)
                until(lambda: not dra.prepare(ASKED)[UID].error)


PF, VF = "0000:3b:00.0", "0000:3b:00.2"
WHOLE: dict[str, Any] = {"name": "example.com/whole", "kind": "pf", "selectors": {"pciAddresses": [PF]}}
PARTS: dict[str, Any] = {"name": "example.com/parts", "kind": "vf", "selectors": {"rootDevices": [PF]}}


@pytest.mark.parametrize("by_plugin", ["whole", "parts"])
def test_a_part_of_a_device(server: tuple[DraApi, Path], by_plugin: str) -> None:
    """The plugin has a PF and claims have its VF, or the other way round.  The second of both is refused, whichever it
    is, although no event has told hpn node to read anything."""
    made, kubeconfig = server
    ids = {"whole": PF, "parts": VF}
    claimed = ids.pop("parts" if by_plugin == "whole" else "whole")
    given = ids[by_plugin]
    resources = [{**one, "by": "devicePlugin" if by_plugin in one["name"] else "dra"} for one in (PARTS, WHOLE)]
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process, tree = NodeProcess(Path(folder), resources, "--kubeconfig", str(kubeconfig)), Tree(Path(folder, "sys"))
        tree.netdev("wide0", tree.pci(PF, sriov_totalvfs=7))
        tree.pci(VF, pf=PF)
        process.show(tree.root)
        process.registry.mkdir(parents=True)
        socket = process.registry / f"hpn-example.com_{by_plugin}.sock"
        with listing(process.kubelet), process, ExitStack() as stack:
            until(lambda: claimed in made.devices() and socket.is_socket())
            plugin, dra = stack.enter_context(kubelet(socket)), process.registry / "hpn-hpn-cni.io.sock"
            driver = stack.enter_context(dra_kubelet(dra))
            pool, device = made.devices()[claimed]
            made.claim = claim(pool, device["name"])
            until(lambda: not driver.prepare(ASKED)[UID].error)
            with pytest.raises(grpc.RpcError, match=f"device {given}: Kubernetes allocated .* to claim default/rails"):
                plugin.allocate(given)
            assert driver.unprepare(ASKED)[UID] == ""
            plugin.allocate(given)
            assert "a pod has it from the device plugin" in driver.prepare(ASKED)[UID].error


@pytest.fixture
def offering(server: tuple[DraApi, Path]) -> Iterator[NodeProcess]:
    """hpn node, which offers rail0 by DRA."""
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process = NodeProcess(Path(folder), masters("dra")[:1], "--kubeconfig", str(server[1]))
        process.registry.mkdir(parents=True)
        server[0].is_ready.clear()
        with listing(process.kubelet), process:
            yield process


def test_the_first_health(server: tuple[DraApi, Path], offering: NodeProcess) -> None:
    """Devices have the node's name, which the API server knows, so kubelet's first list may be empty.  kubelet has
    forgotten all health by then, so the devices follow without an event of theirs."""
    made, socket = server[0], offering.registry / "hpn-hpn-cni.io.sock"
    until(socket.is_socket)
    lists = list[int]()
    with dra_kubelet(socket) as kubelet:
        stream = kubelet.health()
        lists.append(len(next(stream).devices))
        made.is_ready.set()
        with ThreadPoolExecutor() as threads:
            following = threads.submit(lambda: len(next(stream).devices))
            try:
                until(lambda: made.devices() and following.done())
            finally:
                stream.cancel()
        lists.append(following.result())
    assert lists == [0, 1]


def test_a_socket_that_vanishes(server: tuple[DraApi, Path], offering: NodeProcess) -> None:
    """As with kubeadm reset: it is made anew, and claims show their interfaces as before."""
    made, socket = server[0], offering.registry / "hpn-hpn-cni.io.sock"
    made.is_ready.set()
    until(lambda: socket.is_socket() and made.devices())
    pool, device = made.devices()["rail0"]
    made.claim = claim(pool, device["name"])
    keys = {"apiVersion": "hpn-cni.io/v1", "kind": "Attachment", "attach": "none"}
    none = {"source": "FromClass", "opaque": {"driver": "hpn-cni.io", "parameters": keys}}
    made.claim["status"]["allocation"]["devices"]["config"] = [none]
    for times in range(1, 4):
        until(socket.is_socket)
        with dra_kubelet(socket) as kubelet:
            until(lambda kubelet=kubelet: not kubelet.prepare(ASKED)[UID].error)  # type: ignore[misc]
            until(lambda times=times: len(made.statuses) >= times)  # type: ignore[misc]
            assert kubelet.unprepare(ASKED) == {UID: ""}
        socket.unlink()
    until(socket.is_socket)


@pytest.fixture
def with_a_pod(server: tuple[DraApi, Path]) -> Iterator[NodeProcess]:
    """hpn node before its start.  A pod has one of two shares from the plugin, and a kubelet that has just started does
    not list it."""
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        resource = {**masters("dra")[0], "count": 2}
        process = NodeProcess(Path(folder), [resource], "--kubeconfig", str(server[1]))
        process.registry.mkdir(parents=True)
        with listing(process.kubelet):
            (process.kubelet / "pods" / "pod-1").mkdir()
            keep(process.kubelet, entry("pod-1", "example.com/rail0", "rail0-0"))
            yield process


def test_a_kubelet_that_has_just_started(server: tuple[DraApi, Path], with_a_pod: NodeProcess) -> None:
    with with_a_pod:
        until(server[0].devices)
        _, device = server[0].devices()["rail0"]
        assert device["capacity"]["shares"]["value"] == "1"


def test_in_a_container_without_its_checkpoint(server: tuple[DraApi, Path], with_a_pod: NodeProcess) -> None:
    kubelet, here = with_a_pod.kubelet, "/run/kubelet"
    for name in ("plugins_registry", "pod-resources"):
        with_a_pod.mounts += [f"mkdir -p {here}/{name}", f"mount --bind {kubelet}/{name} {here}/{name}"]
    with_a_pod.mounts.append(f"mount --rbind {here} {kubelet}")
    with with_a_pod:
        line = with_a_pod.says("cannot be read")
        assert f"in a container, mount {kubelet}/device-plugins and {kubelet}/pods" in line
        assert not server[0].slices


def test_the_driver_leaves_kubelet_without_a_credential(server: tuple[DraApi, Path]) -> None:
    """Back to the device plugin after the credential has gone, as by a rollback of the chart: a prepared claim can end,
    and then kubelet removes the slices."""
    made, kubeconfig = server
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        process = NodeProcess(Path(folder), masters("dra"), "--kubeconfig", str(kubeconfig))
        process.registry.mkdir(parents=True)
        with listing(process.kubelet), process:
            until(lambda: made.devices().keys() >= {"rail0", "fabric"})
            socket = process.registry / "hpn-hpn-cni.io.sock"
            pool, device = made.devices()["fabric"][0], made.devices()["fabric"][1]["name"]
            with dra_kubelet(socket) as dra:
                made.claim = claim(pool, device)
                until(lambda: not dra.prepare(ASKED)[UID].error)
                kubeconfig.rename(kubeconfig.with_suffix(".away"))
                process.write(masters("devicePlugin"))
                process.reload()
                process.says("kubelet removes them after these have ended: claim default/rails")
                assert socket.is_socket()
                assert not dra.unprepare(ASKED)[UID]
            until(lambda: not socket.exists())
            process.says("the driver leaves kubelet, which removes them, and in ")
            # By DRA again: the driver is there, and needs no restart.
            kubeconfig.with_suffix(".away").rename(kubeconfig)
            process.write(masters("dra"))
            process.reload()
            until(socket.is_socket)
