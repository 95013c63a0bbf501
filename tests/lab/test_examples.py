"""The examples with a VF work unchanged; the system tier tests the others."""

from pathlib import Path

import pytest
from guest.node import RDMA, Node, pci, rdma_devs
from support import pod_resources
from support.shipped import CONF, alone, requests
from support.topology import Pod


@pytest.mark.parametrize(
    "path", sorted([*CONF.glob("*sriov*"), *CONF.glob("nad-host-device*")]), ids=lambda path: path.name
)
def test_attaches_and_detaches(
    node: Node, pod: Pod, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (conf,) = requests(path, node.device)
    alone(conf)
    given = list(zip(conf.get("rails", []), (node.device, pci("rail1v0")), strict=False))
    folder = pod_resources.kubelet(tmp_path / "kubelet", monkeypatch)
    pod_resources.keep(folder, *(pod_resources.entry(pod_resources.UID, *one) for one in given))
    result = node.ok("ADD", pod, conf, CNI_ARGS=pod_resources.CNI_ARGS)
    assert len(pod.links()) == len(given or [node.device])
    assert {ip["address"] for ip in result["ips"]} == {a for name in pod.links() for a in pod.addresses(name)}
    assert RDMA in rdma_devs(pod.name)
    assert len(rdma_devs(pod.name)) == len(pod.links())
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)
