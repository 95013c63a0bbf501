"""hpn ipam import and export: complete or without effect, and reversible."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.ipam_calls import Net
from support.pages import ROOT
from support.topology import until

from base.protocol.errors import RecordUnreadable, TryAgain
from base.protocol.spec import Key
from base.state import durable
from base.state.locks import passing
from ctl.main import main
from ipam.stores.files import exported

RANGES = [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]
UNKNOWN = (
    "no process of 2 of these containers is visible here: their addresses stay held until a DEL, a reboot, or hpn ipam "
    "release --force; hpn doctor lists them"
)


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path / "state", {"ranges": RANGES})


@pytest.fixture
def host_local(tmp_path):
    """The files of host-local for two containers of a network."""
    directory = tmp_path / "networks" / "net"
    directory.mkdir(parents=True)
    for name, content in {
        "10.0.0.2": "c1\r\nnet1", "fd00::2": "c1\r\nnet1", "10.0.0.7": "c2\r\nnet1", "fd00::7": "c2\r\nnet1",
        "last_reserved_ip.0": "10.0.0.7", "last_reserved_ip.1": "fd00::7", "lock": "",
    }.items():  # fmt: skip
        (directory / name).write_bytes(content.encode())
    return directory


@pytest.fixture
def hpn(net, capsys):
    def run(command, *words, status=0):
        done = main(["hpn", "ipam", command, "--data-dir", str(net.state / "ipam"), *map(str, words)])
        out, err = capsys.readouterr()
        assert done == status, out + err
        return out or err

    return run


def test_import(hpn, net, host_local):
    assert hpn("import", "--from", "host-local", host_local).splitlines() == [
        "imported 10.0.0.2, fd00::2 of c1:net1",
        "imported 10.0.0.7, fd00::7 of c2:net1",
        "net: imported 2 leases",
        UNKNOWN,
    ]
    held = {"c1:net1": ("10.0.0.2", "fd00::2"), "c2:net1": ("10.0.0.7", "fd00::7")}
    assert net.leases() == held
    assert net.agrees()
    assert net.add("c1") == held["c1:net1"], "the same attachment, the same addresses"
    assert net.add("c3") not in held.values()
    assert net.call("DEL", "c2") == {}
    assert list(net.leases()) == ["c1:net1", "c3:net1"]
    assert net.call("GC") == {}
    assert list(net.leases()) == ["c1:net1", "c3:net1"], "who was imported is not dead"


def test_import_again_is_nothing_new(hpn, net, host_local):
    for _ in range(2):
        hpn("import", "--from", "host-local", host_local)
    assert len(net.leases()) == 2
    assert net.agrees()


def test_import_dry_run(hpn, net, host_local):
    assert "net: would import 2 leases" in hpn("import", "--from", "host-local", host_local, "--dry-run")
    assert not net.state.exists()
    net.add("x")
    assert "10.0.0.2 is held by net1 of container x, network net here" in hpn(
        "import", "--from", "host-local", host_local, "--dry-run", status=1
    )


def test_import_into_another_network(hpn, net, host_local):
    hpn("import", "--from", "host-local", host_local, "--network", "other")
    assert (net.state / "ipam" / "other" / "leases").exists()


def test_import_that_collides(hpn, net, host_local):
    """Import reports every collision, and imports nothing."""
    net.add("x")  # 10.0.0.2 and fd00::2
    net.add("c2")  # .3
    before = net.file.read_bytes()
    assert sorted(hpn("import", "--from", "host-local", host_local, status=1).splitlines()) == [
        "10.0.0.2 is held by net1 of container x, network net here, by c1:net1 there",
        "c2:net1 holds 10.0.0.3, fd00::3 here and 10.0.0.7, fd00::7 there",
        "fd00::2 is held by net1 of container x, network net here, by c1:net1 there",
        "net: nothing was imported",
    ]
    assert net.file.read_bytes() == before


def test_import_of_what_is_kept_back(hpn, net, host_local):
    """The import refuses a cooling address: peers may still send to its previous owner on this node."""
    net.ipam = {**net.ipam, "releaseCooldown": 1000}
    net.add("x")
    net.call("DEL", "x")
    before = net.file.read_bytes()
    said = hpn("import", "--from", "host-local", host_local, status=1)
    assert "10.0.0.2 is held by the store, kept back after its release" in said
    assert "net: nothing was imported" in said
    assert net.file.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("10.0.0.9", "", "10.0.0.9: "),  # left by a killed host-local
        ("10.0.0.9", "c9", "give --ifname"),
        ("10.0.0.9", "../c9\r\nnet1", "is not a container id"),
    ],
)
def test_import_of_what_names_nobody(hpn, net, host_local, name, content, part):
    (host_local / name).write_text(content)
    assert part in hpn("import", "--from", "host-local", host_local, status=1)
    assert not net.state.exists()


def test_import_with_the_interfaces_name(hpn, net, host_local):
    (host_local / "10.0.0.9").write_text("c9")
    hpn("import", "--from", "host-local", host_local, "--ifname", "eth0")
    assert net.leases()["c9:eth0"] == ("10.0.0.9",)


def test_import_of_nothing_there(hpn, net, tmp_path):
    assert "give the directory of one network" in hpn("import", "--from", "host-local", tmp_path / "no", status=1)
    assert "reading" in hpn("import", "--from", "whereabouts", tmp_path / "no", "--network", "net", status=1)


A, B = ({"id": cid, "podref": f"ns/{pod}", "ifname": "net1"} for cid, pod in (("c1", "a"), ("c2", "b")))
POOLS = {
    "items": [
        {"kind": "IPPool", "spec": {"range": "10.0.0.0/24", "allocations": {"5": A, "12": B}}},
        {"kind": "IPPool", "spec": {"range": "fd00::/64", "allocations": {"5": A}}},
        {"kind": "IPPool", "spec": {"range": "10.9.0.0/24", "allocations": None}},
    ]
}


def test_import_from_whereabouts(hpn, net, tmp_path):
    dump, pods = tmp_path / "ippools.json", tmp_path / "pods"
    dump.write_text(json.dumps(POOLS))
    pods.write_text("ns/a\nns/elsewhere\n")
    command = ("import", "--from", "whereabouts", dump, "--network", "net")
    assert "net: imported 1 leases" in hpn(*command, "--pods", pods)
    assert net.leases() == {"c1:net1": ("10.0.0.5", "fd00::5")}
    assert net.body("c1")["pod"] == "ns/a"
    hpn(*command)
    assert net.leases()["c2:net1"] == ("10.0.0.12",)
    assert net.agrees()


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"items": [{"spec": {}}]}', '{"items": [{"spec": {"range": "10.0.0.0/24", "allocations": 5}}]}'],
)
def test_no_dump(hpn, net, tmp_path, text):
    (tmp_path / "dump").write_text(text)
    said = hpn("import", "--from", "whereabouts", tmp_path / "dump", "--network", "net", status=1)
    assert "is not a dump of IPPools" in said
    assert not net.state.exists()


# The format of kubectl; without quotes some YAML readers would read 0c1 and 5 as other types.
YAML = """\
apiVersion: v1
items:
- apiVersion: whereabouts.cni.cncf.io/v1alpha1
  kind: IPPool
  metadata:
    creationTimestamp: "2026-01-31T12:00:00Z"
    name: 10.0.0.0-24
  spec:
    allocations:
      "5":
        id: 01e2
        ifname: net1
        podref: ns/a
      "12": {id: "07", ifname: net1, podref: ns/b}
    range: 10.0.0.0/24
- kind: IPPool
  spec: {allocations: null, range: 10.9.0.0/24}
kind: List
metadata:
  resourceVersion: ""
"""


def test_import_of_yaml(hpn, net, tmp_path):
    (tmp_path / "dump").write_text(YAML)
    assert "net: imported 2 leases" in hpn("import", "--from", "whereabouts", tmp_path / "dump", "--network", "net")
    assert net.leases() == {"01e2:net1": ("10.0.0.5",), "07:net1": ("10.0.0.12",)}


def test_json_needs_no_yaml(tmp_path):
    """An import from JSON does not import PyYAML."""
    (tmp_path / "dump").write_text(json.dumps(POOLS))
    command = ["import", "--from", "whereabouts", "dump", "--network", "net", "--data-dir", f"{tmp_path}/state"]
    program = f"import sys; from ctl.ipam.command import answer; answer({command}); sys.exit('yaml' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is neither JSON nor YAML (it is empty"),
        ("---\nkind: IPPool\n", "is not a dump of IPPools"),
        ("NAME  AGE\n", "is not a dump of IPPools"),
        ("NAME: a\nAGE:\t[\n", "is neither JSON nor YAML (line "),
        ("a: &a [1]\nb: *a\n", "is neither JSON nor YAML (line 2: aliases"),
        ("a: 1\na: 2\n", "is neither JSON nor YAML (line 2: the key"),
        ('{"items": [', "is not JSON ("),
        ("[" * 100_000, "is not JSON ("),
        ('{"items": [],}', "is not JSON ("),
    ],
)
def test_what_kubectl_prints_otherwise(hpn, net, tmp_path, text, why):
    (tmp_path / "dump").write_text(text)
    said = hpn("import", "--from", "whereabouts", tmp_path / "dump", "--network", "net", status=1)
    assert why in said
    assert "kubectl get ippools.whereabouts.cni.cncf.io -A -o json" in said
    assert not net.state.exists()


def test_offsets_count_from_the_address_of_the_range(hpn, net, tmp_path):
    """Offsets count from the range's address, as in whereabouts, not from the subnet's."""
    (tmp_path / "dump").write_text(json.dumps({"spec": {"range": "10.0.0.64/24", "allocations": {"5": A}}}))
    hpn("import", "--from", "whereabouts", tmp_path / "dump", "--network", "net")
    assert net.leases() == {"c1:net1": ("10.0.0.69",)}


def test_whereabouts_needs_a_network(hpn, net, tmp_path):
    (tmp_path / "dump").write_text(json.dumps(POOLS))
    assert "is not a network name" in hpn("import", "--from", "whereabouts", tmp_path / "dump", status=1)


def test_export_and_import_again(hpn, net, tmp_path):
    held = {f"{cid}:net1": net.add(cid) for cid in ("a", "b")}
    there = tmp_path / "networks" / "net"
    assert "would export 2 leases" in hpn("export", "--to", "host-local", "net", there, "--dry-run")
    assert not there.exists()
    for _ in range(2):
        assert hpn("export", "--to", "host-local", "net", there) == "net: exported 2 leases\n"
    assert {path.name: path.read_bytes() for path in there.iterdir() if path.name != "lock"} == {
        "10.0.0.2": b"a\r\nnet1", "fd00::2": b"a\r\nnet1", "10.0.0.3": b"b\r\nnet1", "fd00::3": b"b\r\nnet1",
        "last_reserved_ip.0": b"10.0.0.3", "last_reserved_ip.1": b"fd00::3",
    }  # fmt: skip
    shutil.rmtree(net.dir)
    hpn("import", "--from", "host-local", there)
    assert net.leases() == held


def test_exported_addresses_end_here_and_there(hpn, net, tmp_path):
    """The DEL of a pod that hpn attached comes to hpn-ipam, and never to host-local."""
    for cid in ("a", "b", "c", "d", "e"):
        net.add(cid)
    there = tmp_path / "networks" / "net"
    hpn("export", "--to", "host-local", "net", there)
    (there / "10.0.0.4").write_bytes(b"another\r\nnet1")  # host-local released c's, and gave it to another pod
    names = lambda: {path.name for path in there.iterdir() if path.name[0] in "1f"}  # noqa: E731
    net.call("DEL", "a")
    assert names() == {*(f"10.0.0.{n}" for n in (3, 4, 5, 6)), *(f"fd00::{n}" for n in (3, 4, 5, 6))}
    net.call("DEL", "c")
    assert "10.0.0.4" in names()
    assert "fd00::4" not in names()
    hpn("release", "net", "d", "--force")
    assert "10.0.0.5" not in names()
    net.another_boot("b", "e")
    hpn("gc", "net")
    assert names() == {"10.0.0.4"}
    assert not (net.dir / "exported").exists()


def test_an_export_that_cannot_be_ended_now(hpn, net, tmp_path):
    """DEL succeeds, reports it, and a later release removes the file."""
    net.add("a"), net.add("b")
    there = tmp_path / "networks" / "net"
    hpn("export", "--to", "host-local", "net", there)
    (there / "lock").unlink()
    (there / "lock").mkdir()
    assert [line for line in net.reply("DEL", "a").log if "files of host-local could not be removed" in line]
    assert (there / "10.0.0.2").exists()
    (there / "lock").rmdir()
    assert net.call("DEL", "b") == {}
    assert not [path for path in there.iterdir() if path.name[0] in "1f"]


def test_exported_addresses_of_many_pods_end_at_once(tmp_path):
    """A drain ends them together, and each DEL writes the list of the files that are left."""
    net, there = tmp_path / "net", tmp_path / "there"
    net.mkdir(mode=0o700), there.mkdir()
    keys = {ip_address(f"10.0.0.{n}"): Key(f"c{n}", "net1") for n in range(2, 42)}
    with exported.recorded(net, there, keys):
        for address, key in keys.items():
            (there / f"{address}").write_text(f"{key.container_id}\r\n{key.ifname}")
    held = set(map(str, keys))

    def end(address):
        held.remove(address)
        return exported.remove(net, lambda files: [one for one in files if Path(one).name not in held])

    with ThreadPoolExecutor(len(keys)) as threads:
        assert [line for lines in threads.map(end, [*held]) for line in lines] == []
    assert [path.name for path in there.iterdir()] == ["lock"]
    assert [*net.iterdir()] == []


@pytest.mark.parametrize(
    "body",
    [
        {"directory": "/d"},
        {"files": 1},
        {"files": []},
        {"files": {"a": 1}},
        {"files": {"a": ["c"]}},
        {"files": {"a": [["c"], "i"]}},
        {"directory": 1, "files": {"a": ["c", "i"]}},
    ],
)
def test_an_odd_record_of_exported_files(tmp_path, body):
    """An intact state file without the members that it should have, as a later version may write."""
    (net := tmp_path / "net").mkdir()
    durable.write(net / "exported", body)
    record = exported.recorded(net, tmp_path, {ip_address("10.0.0.2"): Key("c", "net1")})
    with pytest.raises(RecordUnreadable, match="exported is not a record of exported files"), record:
        pass
    (message,) = exported.remove(net, list)
    assert message.startswith(f"{net}/exported: files of host-local could not be removed: ")


def test_an_end_while_the_files_are_exported(tmp_path):
    """It waits, or its file would be written afterwards, and stay."""
    net, there = tmp_path / "net", tmp_path / "there"
    net.mkdir(mode=0o700), there.mkdir()

    keys = {ip_address("10.0.0.2"): Key("a", "net1")}
    with ThreadPoolExecutor(1) as threads:
        with exported.recorded(net, there, keys):
            ending = threads.submit(exported.remove, net, list)
            with pytest.raises(TryAgain), passing(f"{net}/exported.lock", 0):
                pass
            (there / "10.0.0.2").write_bytes(b"a\r\nnet1")
        assert ending.result() == []
    assert [path.name for path in there.iterdir()] == ["lock"]


def test_an_imported_address_whose_end_comes_here(hpn, net, host_local):
    """host-local does not learn of it, and its file would keep the address from all pods."""
    hpn("import", "--from", "host-local", host_local)
    (host_local / "10.0.0.3").write_bytes(b"another\r\nnet1")  # host-local gave it to another pod
    assert net.call("DEL", "c1") == {}
    assert not (host_local / "10.0.0.2").exists()
    assert net.call("ADD", "y", runtimeConfig={"ips": ["10.0.0.2"]})["ips"][0]["address"] == "10.0.0.2/24"
    assert net.gc() == {}
    assert {path.name for path in host_local.iterdir() if path.name[0] in "1f"} == {"10.0.0.3"}


def test_nothing_to_import(hpn, net, host_local):
    """On most nodes, before their first pod: no DEL looks for files of host-local afterwards."""
    for path in [path for path in host_local.iterdir() if path.name[0] in "1f"]:
        path.unlink()
    hpn("import", "--from", "host-local", host_local)
    assert not (net.dir / "exported").exists()
    assert (net.dir / "imported-from").is_symlink()


def test_addresses_that_host_local_gives_after_the_import(hpn, net, host_local):
    """Pods may start between the import and the change of the type, whatever cordon keeps away."""
    hpn("import", "--from", "host-local", host_local)
    (host_local / "10.0.0.8").write_bytes(b"late\r\nnet1")
    given = net.add("x")
    assert given == ("10.0.0.9", "fd00::8")
    code = net.call("ADD", "y", runtimeConfig={"ips": ["10.0.0.8"]})
    assert code["code"] == 102
    assert f"10.0.0.8 is held by a pod of host-local's ({host_local}/10.0.0.8)" in code["msg"]
    assert net.add("c1") == ("10.0.0.2", "fd00::2"), "its own file is no other user"
    (host_local / "10.0.0.8").unlink()
    assert net.call("DEL", "x") == {}
    assert "10.0.0.8" in {net.add(f"z{n}")[0] for n in range(253 - 3)}


def test_a_pod_ends_during_the_export(hpn, net, tmp_path):
    """After its lease was read, and before its file is recorded."""
    net.add("a"), net.add("b")
    there = tmp_path / "networks" / "net"
    with ThreadPoolExecutor(1) as threads:
        with passing(f"{net.dir}/exported.lock", 60):
            export = threads.submit(hpn, "export", "--to", "host-local", "net", there)
            until(lambda: waits_for(f"{net.dir}/exported.lock"))
            assert net.call("DEL", "a") == {}
        assert export.result() == "net: exported 2 leases\n"
    assert {path.name for path in there.iterdir() if path.name[0] in "1f"} == {"10.0.0.3", "fd00::3"}


def waits_for(path):
    """Return whether another thread has the lock's file open, beside this one."""
    names = [os.path.realpath(fd.path) for fd in os.scandir("/proc/self/fd")]
    return names.count(path) == 2


def test_an_export_to_another_directory(hpn, net, tmp_path):
    """The files of the first one end too, and those that a version before recorded."""
    net.add("a"), net.add("b"), net.add("c")
    first, second, old = (tmp_path / name / "net" for name in ("first", "second", "old"))
    old.mkdir(parents=True)
    (old / "10.0.0.2").write_bytes(b"a\r\nnet1")
    durable.write(net.dir / "exported", {"directory": f"{old}", "files": {"10.0.0.2": ["a", "net1"]}})
    for there in (first, second):
        hpn("export", "--to", "host-local", "net", there)
    for cid in ("a", "b"):
        net.call("DEL", cid)
    names = [{path.name for path in there.iterdir() if path.name[0] in "1f"} for there in (first, second, old)]
    assert names == [{"10.0.0.4", "fd00::4"}, {"10.0.0.4", "fd00::4"}, set()]
    assert durable.read(net.dir / "exported")["files"].keys() == {
        f"{there / name}" for there in (first, second) for name in ("10.0.0.4", "fd00::4")
    }


def test_export_that_collides(hpn, net, host_local):
    net.add("x")
    before = {path: path.read_bytes() for path in host_local.iterdir()}
    said = hpn("export", "--to", "host-local", "net", host_local, status=1)
    assert "10.0.0.2 is c1:net1 there" in said
    assert "10.0.0.7 is c2:net1 there, and free here" in said
    assert {path: path.read_bytes() for path in host_local.iterdir()} == before


def test_export_says_what_is_lost_with_it(hpn, net, tmp_path):
    net.ipam = {"subnet": "10.0.0.0/24", "releaseCooldown": 1000}
    net.add("a")
    net.call("DEL", "a")
    assert "1 addresses kept back after their release are free there" in hpn(
        "export", "--to", "host-local", "net", tmp_path / "there"
    )
