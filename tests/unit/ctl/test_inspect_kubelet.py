"""hpn inspect beside a kubelet, played by a grpcio server of PodResources."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from unit.ctl.test_inspect import VF, save

from base.kubelet import client
from base.kubelet import podresources_pb2 as pr
from base.kubelet.client import Held
from base.protocol.spec import Key
from ctl.inspection import match
from ctl.main import main

PAGE = (Path(__file__).parents[3] / "docs/user/commands.md").read_text()
GIVEN = pr.ListPodResourcesResponse(
    pod_resources=[
        pr.PodResources(
            name=pod, namespace="default", containers=[pr.ContainerResources(name="train", devices=devices)]
        )
        for pod, devices in (
            ("t1", [pr.ContainerDevices(resource_name="rdma/hca_shared", device_ids=["17"])]),
            (
                "t0",
                [
                    pr.ContainerDevices(resource_name="intel.com/vf", device_ids=["0000:3b:10.1"]),
                    pr.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-77c0", "GPU-5f1a"]),
                ],
            ),
            ("t2", []),
        )
    ]
)
LIMIT = 600.0  # seconds; after that a silent kubelet gives a valid answer, and the test fails
T0 = replace(
    VF, netns="/run/netns/t0", pod="default/t0", gids=[], result={**VF.result, "ips": VF.result["ips"][:1]},
    link={**VF.link, "pf": "", "number": -1, "rdma_devs": ["mlx5_4"]},
)  # fmt: skip


@pytest.fixture
def answer() -> list[bytes | None]:
    """kubelet's answer, which a test may replace; None keeps kubelet silent during the test."""
    return [GIVEN.SerializeToString()]


@pytest.fixture
def kubelet(tmp_path: Path, answer: list[bytes | None]) -> Iterator[Path]:
    ends = threading.Event()

    def list_pods(_: bytes, __: grpc.ServicerContext) -> bytes:
        if answer[0] is None:
            ends.wait(LIMIT)
            return GIVEN.SerializeToString()
        return answer[0]

    handler = grpc.unary_unary_rpc_method_handler(list_pods)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(
            pool, handlers=[grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})]
        )
        (tmp_path / "pod-resources").mkdir()
        server.add_insecure_port(f"unix:{tmp_path}/pod-resources/kubelet.sock")
        server.start()
        yield tmp_path
        ends.set()
        server.stop(None).wait()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the time limit: a kubelet on a busy machine may be slow."""
    monkeypatch.setattr(client.pods, "__defaults__", (client.SOCKET, 60.0))


def shown(kubelet: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["hpn", "inspect", "--state-dir", str(kubelet), "--kubelet-dir", str(kubelet), *words]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("patient")
def test_table(kubelet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(kubelet, T0)
    assert f"```text\n{shown(kubelet, capsys)}```" in PAGE


@pytest.mark.usefixtures("patient")
def test_json(kubelet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(kubelet, T0, replace(T0, key=Key("2", "hpn0"), pod="default/t1"))
    document = json.loads(shown(kubelet, capsys, "--json"))
    found = {a["pod"]: a.get("resource") for a in document["attachments"]}
    assert found == {
        "default/t0": {"name": "intel.com/vf", "id": "0000:3b:10.1", "container": "train"},
        "default/t1": None,
    }
    assert document["unattached"] == [
        {"pod": "default/t0", "container": "train", "resource": "nvidia.com/gpu", "ids": ["GPU-5f1a", "GPU-77c0"]},
        {"pod": "default/t1", "container": "train", "resource": "rdma/hca_shared", "ids": ["17"]},
    ]


@pytest.mark.usefixtures("patient")
def test_one_of_them(kubelet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The details have the resource too."""
    save(kubelet, T0)
    (a,) = json.loads(shown(kubelet, capsys, "default/t0", "--json"))["attachments"]
    assert a["resource"] == {"name": "intel.com/vf", "id": "0000:3b:10.1", "container": "train"}


@pytest.mark.usefixtures("patient")
def test_nothing_attached(kubelet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, _, *rest = shown(kubelet, capsys).splitlines()
    assert first.startswith("nothing is attached")
    assert len(rest) == 5


@pytest.mark.parametrize("wrong", [b"\xff", None])
def test_no_answer_of_use(
    kubelet: Path, capsys: pytest.CaptureFixture[str], answer: list[bytes | None], wrong: bytes | None
) -> None:
    save(kubelet, T0)
    answer[0] = wrong
    lines = shown(kubelet, capsys).splitlines()
    assert len(lines) == 2
    assert "RESOURCE" not in lines[0]


@pytest.mark.parametrize(
    ("attachment", "identity", "belongs"),
    [
        ({"device": "0000:3b:00.2"}, "0000:3b:00.2", True),
        ({"device": "0000:3b:00.2"}, "0000:3b:00.2-7", True),
        ({"device": "0000:3b:00.2"}, "0000:3b:00.2-x", False),
        ({"device": "0000:3b:00.2"}, "0000:3b:00.21", False),
        ({"device": "0000:3b:00.2"}, "7", False),
        ({"master": "bond0"}, "bond0-1", True),
        ({"device": "mlx5_core.sf.4", "netdev": "eth9"}, "eth9", True),
        ({"device": ""}, "", False),
    ],
)
@pytest.mark.parametrize(("pod", "same"), [("a/b", True), ("", True), ("a/c", False)])
def test_match(attachment: dict[str, str], identity: str, belongs: bool, pod: str, same: bool) -> None:
    a = {"pod": pod, **attachment}
    rest = match([a], [Held("a", "b", "c", "x/y", (identity,))])
    assert ("resource" in a) == (belongs and same) == (rest == [])
