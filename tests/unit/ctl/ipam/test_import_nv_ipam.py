"""hpn ipam import --from nv-ipam: the file of its node daemon."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.ipam_calls import Net

from ctl.main import main


def entry(cid: str, address: str, subnet: str, pod: str = "a") -> dict[str, Any]:
    """Return an entry as the daemon writes it (pkg/ipam-node/types/types.go)."""
    pool = {"subnet": subnet, "startIP": "", "endIP": "", "gateway": "", "exclusions": None, "routes": None}
    about = {"create_time": "", "pod_uuid": "", "pod_name": pod, "pod_namespace": "ns", "device_id": ""}
    about["pool_config_snapshot"] = json.dumps(pool)
    return {"container_id": cid, "interface_name": "net1", "ip_address": address, "metadata": about}


def pool(name: str, *entries: dict[str, Any]) -> dict[str, Any]:
    found = {f"{one['container_id']}_{one['interface_name']}": one for one in entries}
    return {"name": name, "entries": found, "last_pool_config": "", "last_reserved_ip": ""}


STORE = {
    "version": 1,
    "checksum": 1,
    "pools": {
        "v4": pool("v4", entry("c1", "10.0.0.5", "10.0.0.0/24"), entry("c2", "10.0.0.7", "10.0.0.0/24", "b")),
        "CIDRPool/v6": pool("CIDRPool/v6", entry("c1", "fd00::5", "fd00::/64")),
        "other": pool("other", entry("c1", "10.9.0.5", "10.9.0.0/16")),
    },
}
UNKNOWN = (
    "no process of 2 of these containers is visible here: their addresses stay held until a DEL, a reboot, or hpn ipam "
    "release --force; hpn doctor lists them"
)


@pytest.fixture
def net(tmp_path: Path) -> Net:
    return Net(tmp_path / "state", {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]})


@pytest.fixture
def hpn(net: Net, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(document: Any, *words: str, status: int = 0) -> str:
        (tmp_path / "store").write_text(document if isinstance(document, str) else json.dumps(document))
        where = ("--data-dir", str(net.state / "ipam"), "--network", "net")
        done = main(["hpn", "ipam", "import", "--from", "nv-ipam", str(tmp_path / "store"), *where, *words])
        out, err = capsys.readouterr()
        assert done == status, out + err
        return out or err

    return run


def test_the_pools_of_a_network(hpn: Any, net: Net) -> None:
    words = ("--pool", "v4", "--pool", "CIDRPool/v6")
    assert "net: would import 2 leases" in hpn(STORE, *words, "--dry-run")
    assert net.leases() == {}
    assert hpn(STORE, *words).splitlines() == [
        "imported 10.0.0.5, fd00::5 of c1:net1 ns/a",
        "imported 10.0.0.7 of c2:net1 ns/b",
        "net: imported 2 leases",
        UNKNOWN,
    ]
    assert net.leases() == {"c1:net1": ("10.0.0.5", "fd00::5"), "c2:net1": ("10.0.0.7",)}
    assert net.body("c1")["addresses"] == ["10.0.0.5/24", "fd00::5/64"]
    assert net.call("DEL", "c2") == {}
    assert list(net.leases()) == ["c1:net1"]
    assert net.agrees()


def test_all_pools(hpn: Any, net: Net) -> None:
    """Pools of one family belong to several networks, so each must be named."""
    said = hpn(STORE, status=1)
    assert "has 3 pools with addresses, some of other networks: CIDRPool/v6, other, v4; give --pool" in said
    assert net.leases() == {}
    pools = {name: STORE["pools"][name] for name in ("v4", "CIDRPool/v6")}
    hpn({**STORE, "pools": pools})
    assert net.leases()["c1:net1"] == ("10.0.0.5", "fd00::5")


def test_what_collides(hpn: Any, net: Net) -> None:
    twice = {
        "pools": {"v4": pool("v4", entry("c1", "10.0.0.5", "10.0.0.0/24"), entry("c2", "10.0.0.5", "10.0.0.0/24"))}
    }
    said = hpn(twice, status=1)
    assert "10.0.0.5 belongs to c1:net1 and c2:net1 there" in said
    assert net.leases() == {}


def test_no_such_pool(hpn: Any) -> None:
    assert "has no pool v5; there is v4, CIDRPool/v6, other" in hpn(STORE, "--pool", "v5", status=1)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "is not a store of nv-ipam's node daemon"),
        ({"pools": {"a": {"entries": {"k": {}}}}}, "is not a store of nv-ipam's node daemon (KeyError: 'metadata'"),
        ("{", "is not JSON"),
        ({"pools": {"a": pool("a", entry("../c", "10.0.0.5", "10.0.0.0/24"))}}, "10.0.0.5 of ns/a: "),
        ({"pools": {"a": pool("a", entry("c", "10.0.0.x", "10.0.0.0/24"))}}, "is not a store of nv-ipam's"),
    ],
)
def test_what_is_none(hpn: Any, net: Net, document: Any, why: str) -> None:
    said = hpn(document, status=1)
    assert why in said
    assert "Traceback" not in said
    assert not net.state.exists()
