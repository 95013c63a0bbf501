"""A policy file restricts the names in configurations: the author of a NetworkAttachmentDefinition can use no
others."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.pages import ROOT
from support.topology import PROGRAMS, Host, Pod

from base.protocol.spec import Request
from cni.main import run as hpn
from ipam import main as hpn_ipam

EXAMPLE = (ROOT / "docs" / "user" / "security.md").read_text().partition("definitions\n")[2].partition("```json")[2]
NAMED = {"cniVersion": "1.1.0", "name": "tenant-a", "type": "hpn"}
MACVLAN = NAMED | {"master": "rail0"}
OTHER = {"deviceID": "0000:86:00.2"}
DEVICE = {"kind": "host-device", "deviceID": "0000:3b:00.2"}
LEASES = {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}


@pytest.fixture
def locked(node_file: Path) -> Path:
    """The policy file of security.md."""
    node_file.write_text(EXAMPLE.partition("```")[0])
    return node_file


def asked(command: str, conf: dict[str, Any], **environ: str) -> dict[str, Any]:
    """The answer to a command for an absent pod."""
    of_pod = {"CNI_CONTAINERID": "c", "CNI_NETNS": "/nonexistent/p", "CNI_IFNAME": "hpn0", "CNI_PATH": "/nonexistent"}
    request = Request({"CNI_COMMAND": command, **of_pod, **environ}, json.dumps(conf).encode())
    return dict(json.loads(hpn(request, PROGRAMS).stdout or "{}"))


def refusal(conf: dict[str, Any], **environ: str) -> str:
    """The refusal by ADD and STATUS; empty if ADD got as far as opening the pod's namespace."""
    error = asked("ADD", conf, **environ)
    if error["code"] == 4:
        assert "CNI_NETNS" in error["msg"]
        return ""
    assert (error["code"], asked("STATUS", conf, **environ)) == (7, error)
    return str(error["msg"])


def test_the_example(host: Host, pod: Pod, locked: Path) -> None:
    """A definition within the limits works, with its state in the default directory."""
    assert locked.exists()
    conf = MACVLAN | {"ipam": LEASES}
    result = host.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.56.0.2/24"}
    assert host.leases() == {"10.56.0.2"}
    locked.write_text('{"allowedNames": {"name": [], "kind": [], "master": []}}')
    assert "allowedNames.name" in host.refused("STATUS", pod, conf)["msg"]
    assert host.checked(pod, conf, result).exit_code == 0
    valid = [{"containerID": pod.name, "ifname": "hpn0"}]
    host.ok("GC", None, conf | {"cni.dev/valid-attachments": valid})
    assert pod.links() == {"hpn0"}
    host.ok("DEL", pod, conf)
    assert (pod.links(), host.leases()) == (set(), set())


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        (MACVLAN, ""),
        (MACVLAN | DEVICE | {"kind": "macvlan"}, ""),  # Multus adds the key, and a macvlan ignores it
        (NAMED | DEVICE | {"kind": "sriov"}, ""),
        (NAMED | {"kind": "sriov", "runtimeConfig": {"deviceID": "0000:5e:00.2"}}, ""),
        (MACVLAN | {"master": "eth0", "linkInContainer": True}, ""),
        (MACVLAN | {"name": "storage"}, "name 'storage' is none of those that this node allows (tenant-*);"),
        (MACVLAN | {"master": "eth0"}, "master 'eth0' is none of those that this node allows (rail?);"),
        (NAMED, "master is not set, so it is the default route's, which is none of"),
        (MACVLAN | {"kind": "ipvlan"}, "kind 'ipvlan' is none of"),
        (NAMED | {"pf": "rail0"}, "pf 'rail0' is none of those that this node allows (none);"),
        (NAMED | {"pf": "rail0", "pfOnly": True}, "pf 'rail0' is none of"),
        (NAMED | DEVICE, "kind 'host-device' is none of"),
        (NAMED | OTHER, "deviceID '0000:86:00.2' is none of"),
        (NAMED | {"kind": "sriov", "runtimeConfig": OTHER}, "deviceID '0000:86:00.2' is none of"),
        (MACVLAN | {"ipam": LEASES | {"dataDir": "/run/x"}}, "ipam.dataDir '/run/x' is not below any directory"),
        (MACVLAN | {"logFile": "/var/log/hpn/x"}, "allowedPaths.logFile"),
        (MACVLAN | {"args": {"cni": {"mac": "02:00:00:00:00:07"}}}, "podMayChoose"),
    ],
)
def test_what_it_allows(locked: Path, conf: dict[str, Any], says: str) -> None:
    said = refusal(conf)
    assert (bool(said), says in said, f"{locked}" in said) == (bool(says), True, bool(says))


@pytest.mark.parametrize("key", ["device", "hwaddr", "kernelpath", "deviceID"])
def test_a_device_by_any_key(node_file: Path, key: str) -> None:
    values = {"device": "rail7", "hwaddr": "02:00:00:00:00:07", "kernelpath": "/sys/devices/x"} | OTHER
    conf = NAMED | {"kind": "host-device", key: values[key]}
    node_file.write_text(json.dumps({"allowedNames": {"device": [v for k, v in values.items() if k != key]}}))
    assert refusal(conf).startswith(f"{key} {values[key]!r} is none of")
    node_file.write_text(json.dumps({"allowedNames": {"device": [values[key]], "pf": [], "master": []}}))
    assert refusal(conf) == ""


def test_a_master_by_default(node_file: Path) -> None:
    node_file.write_text('{"allowedNames": {"master": ["*"]}}')
    assert refusal(NAMED) == ""


def test_directories(node_file: Path, tmp_path: Path) -> None:
    node_file.write_text(json.dumps({"allowedPaths": {"dataDir": [f"{tmp_path}/b"]}}))
    for folder in (f"{tmp_path}/b", f"{tmp_path}//b/./x"):
        assert refusal(MACVLAN | {"ipam": LEASES | {"dataDir": folder}}) == ""
    for folder in (f"{tmp_path}", f"{tmp_path}/a", f"{tmp_path}/bc", f"{tmp_path}/b/../c"):
        assert "ipam.dataDir" in refusal(MACVLAN | {"ipam": LEASES | {"dataDir": folder}})
    assert asked("ADD", MACVLAN | {"ipam": {"type": "host-local", "dataDir": "/x"}})["code"] == 106  # of host-local


@pytest.mark.parametrize("listed", [{}, {"stateDir": ["/run"]}, {"stateDir": "/run"}], ids=str)
def test_no_network_has_a_state_directory(node_file: Path, listed: dict[str, Any]) -> None:
    """Nor in chain mode, nor with our IPAM under another plugin, whatever a list of an earlier version allows."""
    node_file.write_text(json.dumps({"allowedPaths": listed}))
    environ = {"CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "x", "CNI_PATH": "/n"}
    own = {"stateDir": "/run/tenant"}
    for command in ("ADD", "STATUS"):
        for conf in (MACVLAN, MACVLAN | {"strict": False}, NAMED | {"claims": True, "prevResult": {}}):
            assert asked(command, conf | own) == asked(command, conf | own) | {"code": 7, "msg": REFUSED}
        stdin = json.dumps(MACVLAN | {"type": "macvlan", "ipam": LEASES} | own).encode()
        reply = hpn_ipam.run(Request(environ | {"CNI_COMMAND": command}, stdin))
        assert json.loads(reply.stdout)["msg"] == REFUSED
    for command in ("DEL", "GC"):
        assert asked(command, MACVLAN | own | {"cni.dev/valid-attachments": []}) == {}


def test_a_list_of_an_earlier_version(host: Host, pod: Pod, node_file: Path) -> None:
    """ADD works, and its log names the key that has no effect."""
    node_file.write_text('{"allowedPaths": {"stateDir": []}}')
    reply = host.call("ADD", pod)
    assert (reply.exit_code, len(reply.log)) == (0, 1), reply
    assert f"{node_file}: allowedPaths.stateDir has no effect any more; remove it" in reply.log[0]
    host.ok("DEL", pod)


def test_what_multus_leaves_of_a_configuration(locked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STATUS succeeds for a cluster network without its keys, which Multus strips, so the node stays ready."""
    assert locked.exists()
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    stripped = {"cniVersion": "1.1.0", "name": "storage", "type": "hpn", "ipam": {"type": "hpn-ipam"}}
    assert asked("STATUS", stripped).get("code") != 7
    # An ADD without keys would be a macvlan over the default route's interface.
    added = asked("ADD", stripped | {"ipam": {"type": "dhcp"}})
    assert (added["code"], "allowedNames" in added["msg"]) == (7, True)
    environ = {"CNI_COMMAND": "STATUS", "CNI_PATH": "/nonexistent"}
    assert hpn_ipam.run(Request(environ, json.dumps(stripped).encode())).exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        *('{"allowedNames": ["rail0"]}', '{"allowedNames": {"mode": ["l2"]}}', '{"allowedNames": {"master": "rail0"}}'),
        *(
            '{"allowedNames": {"pf": [7]}}',
            '{"allowedPaths": {"dataDir": "/"}}',
            '{"allowedPaths": {"dataDir": ["x"]}}',
        ),
    ],
)
def test_a_broken_list_of_names(node_file: Path, text: str) -> None:
    node_file.write_text(text)
    said = refusal(MACVLAN)
    assert (str(node_file) in said, "correct it" in said) == (True, True)


REFUSED = (
    'stateDir "/run/tenant" is a key of an earlier version; remove stateDir, and name its directory ipam as '
    "ipam.dataDir while pods have addresses from there"
)
PROGRAM, LIB, RUN = "/var/lib/cni/hpn/program", "/var/lib/cni/hpn", "/run/hpn"


@pytest.mark.parametrize(
    "keys",
    [
        *({"dataDir": folder} for folder in (PROGRAM, f"{PROGRAM}/1", f"{LIB}/ipam/rail0", f"{LIB}/../hpn/ipam/rail0")),
        *({"dataDir": RUN, "name": name} for name in ("attachments", "quarantine", "refused", "rdma")),
        *({"dataDir": LIB, "name": name} for name in ("program", "ipam")),
    ],
    ids=repr,
)
def test_a_directory_of_another_purpose_of_ours(tmp_path: Path, keys: dict[str, str]) -> None:
    data = {"dataDir": keys["dataDir"]} if "dataDir" in keys else {}
    conf = MACVLAN | {k: v for k, v in keys.items() if k != "dataDir"} | {"ipam": LEASES | data}
    for command in ("ADD", "STATUS"):
        error = asked(command, conf)
        assert (error["code"], "hpn keeps other files in" in error["msg"]) == (7, True), error
    if data:
        environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "x", "CNI_PATH": "/n"}
        reply = hpn_ipam.run(Request(environ, json.dumps(conf | {"type": "macvlan"}).encode()))
        assert json.loads(reply.stdout)["code"] == 7
    assert list(tmp_path.iterdir()) == []


def test_a_directory_where_a_network_has_its_leases(tmp_path: Path) -> None:
    """Neither another network's leases nor the program's directory can hold a network's leases, wherever they are."""

    def add(name: str, folder: Path, **environ: str) -> dict[str, Any]:
        conf = NAMED | {"name": name, "ipam": LEASES | {"dataDir": f"{folder}"}}
        of = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "x", "CNI_PATH": "/n"}
        return dict(json.loads(hpn_ipam.run(Request(of | environ, json.dumps(conf).encode())).stdout))

    assert "ips" in add("rail0", tmp_path / "data")
    assert "ips" in add("rail1", tmp_path / "data")
    before = {f"{path}" for path in tmp_path.rglob("*")}
    (tmp_path / "link").symlink_to(tmp_path / "data" / "rail0")
    for folder in ("data/rail0", "data/rail0/quarantine", "link"):
        assert "hpn keeps other files in" in add("quarantine", tmp_path / folder)["msg"]
    assert "hpn keeps" in add("rail2", tmp_path / "p" / "1", HPN_PROGRAM_DIR=f"{tmp_path}/p")["msg"]
    assert {f"{path}" for path in tmp_path.rglob("*")} - {f"{tmp_path}/link"} == before
