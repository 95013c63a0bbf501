"""hpn ipam import --from whereabouts --kubeconfig, with IPPools from an API server."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ipam_calls import Net
from support.tls_server import Server, Told

from ctl.main import main

PATH = "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools?limit=500"
Hpn = Callable[..., str]


def pool(name: str, subnet: str, **allocations: dict[str, str]) -> dict[str, Any]:
    """Return an object of the CustomResourceDefinition ippools.whereabouts.cni.cncf.io, as its API server sends it."""
    return {
        "apiVersion": "whereabouts.cni.cncf.io/v1alpha1",
        "kind": "IPPool",
        "metadata": {
            "name": name, "namespace": "kube-system", "uid": f"uid of {name}", "resourceVersion": "812",
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "managedFields": [{"manager": "whereabouts", "operation": "Update", "fieldsType": "FieldsV1"}],
        },
        "spec": {"range": subnet, "allocations": {offset[1:]: one for offset, one in allocations.items()}},
    }  # fmt: skip


def given(cid: str, pod: str) -> dict[str, str]:
    return {"id": cid, "podref": f"ns/{pod}", "ifname": "net1"}


def page(*items: Any, more: str = "") -> Told:
    about = {"resourceVersion": "901", **({"continue": more, "remainingItemCount": 1} if more else {})}
    return Told(200, {"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPoolList", "metadata": about,
                      "items": list(items)})  # fmt: skip


FIRST = page(pool("10.0.0.0-24", "10.0.0.0/24", n5=given("c1", "a"), n12=given("c2", "b")), more="to/the next")
LAST = page(pool("fd00---64", "fd00::/64", n5=given("c1", "a")), pool("10.9.0.0-24", "10.9.0.0/24"))


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path / "state", {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]})


@pytest.fixture
def hpn(net: Net, asked: tuple[Server, Path], capsys: pytest.CaptureFixture[str]) -> Hpn:
    def run(*words: object, source: str = "whereabouts", status: int = 0) -> str:
        command = ["hpn", "ipam", "import", "--from", source, "--data-dir", str(net.state / "ipam")]
        done = main([*command, "--kubeconfig", str(asked[1]), "--network", "net", *map(str, words)])
        out, err = capsys.readouterr()
        assert done == status, out + err
        return out or err

    return run


def test_import_in_pages(hpn: Hpn, net: Net, server: Server) -> None:
    server.tell(FIRST, LAST)
    assert "net: imported 2 leases" in hpn()
    assert net.leases() == {"c1:net1": ("10.0.0.5", "fd00::5"), "c2:net1": ("10.0.0.12",)}
    assert net.body("c1")["pod"] == "ns/a"
    assert [(one.method, one.path) for one in server.asked] == [
        ("GET", PATH),
        ("GET", f"{PATH}&continue=to%2Fthe%20next"),
    ]
    assert {one.headers["Authorization"] for one in server.asked} == {"Bearer a-token"}


def test_pools_of_several_networks(hpn: Hpn, net: Net, server: Server) -> None:
    other = pool("10.8.0.0-24", "10.8.0.0/24", n9=given("c9", "z"))
    server.tell(FIRST, page(other))
    said = hpn(status=1)
    assert "has 2 pools with addresses, some of other networks: 10.0.0.0-24, 10.8.0.0-24; give --pool" in said
    assert net.leases() == {}


def test_of_these_pods_and_pools(hpn: Hpn, net: Net, server: Server, tmp_path: Path) -> None:
    (tmp_path / "pods").write_text("ns/a\n")
    server.tell(FIRST, LAST)
    hpn("--pods", tmp_path / "pods", "--pool", "10.0.0.0-24", "--pool", "10.9.0.0-24")
    assert net.leases() == {"c1:net1": ("10.0.0.5",)}


def test_a_pool_that_is_not_there(hpn: Hpn, net: Net, server: Server) -> None:
    server.tell(FIRST, LAST)
    assert "has no pool 10.0.1.0-24; there is 10.0.0.0-24, fd00---64, 10.9.0.0-24" in hpn(
        "--pool", "10.0.1.0-24", status=1
    )
    assert not net.state.exists()


def test_pools_of_a_dump(net: Net, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "dump").write_text(json.dumps({"items": FIRST.body["items"] + LAST.body["items"]}))
    words = ["--data-dir", f"{net.state}/ipam", "--network", "net", "--pool", "fd00---64", f"{tmp_path}/dump"]
    assert main(["hpn", "ipam", "import", "--from", "whereabouts", *words]) == 0, capsys.readouterr()
    assert net.leases() == {"c1:net1": ("fd00::5",)}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([Told(404, b"404 page not found\n")], "does not list ippools: the cluster has no IPPools of whereabouts'"),
        ([Told(403, {"kind": "Status", "message": "ippools is forbidden: not you"})], "ippools is forbidden: not you"),
        ([FIRST, Told(410, {"kind": "Status", "message": "The provided continue is too old"})], "continue is too old"),
        ([FIRST, FIRST], "names the same next page again"),
        ([Told(200, {"items": {}})], "its answer is not a list of objects"),
        ([page({"metadata": {"name": "it"}, "spec": {}})], "is not a dump of IPPools (KeyError: 'range')"),
    ],
)
def test_what_goes_wrong(hpn: Hpn, net: Net, server: Server, answers: list[Told], said: str) -> None:
    server.tell(*answers)
    assert said in hpn(status=1)
    assert not net.state.exists()


def test_no_kubeconfig(hpn: Hpn, asked: tuple[Server, Path]) -> None:
    asked[1].unlink()
    assert f"there is no kubeconfig at {asked[1]}" in hpn(status=1)


def test_from_where(hpn: Hpn, server: Server, tmp_path: Path) -> None:
    assert "give either a path or --kubeconfig" in hpn(tmp_path / "dump", status=1)
    assert "--kubeconfig does not apply to --from nv-ipam" in hpn(source="nv-ipam", status=1)
    assert main(["hpn", "ipam", "import", "--from", "host-local"]) == 1
    assert server.asked == []
