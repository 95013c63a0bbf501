"""hpn-ipam in host-local's dataDir: no address is allocated twice, and import works in place."""

import pytest
from support.ipam_calls import Net

from ctl.main import main
from ipam.stores.files.store import FileStore


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path / "state", {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]})


@pytest.fixture
def hpn(net, capsys):
    def run(command, *words, status=0):
        done = main(["hpn", "ipam", command, "--data-dir", str(net.dir.parent), *map(str, words)])
        out, err = capsys.readouterr()
        assert done == status, out + err
        return out or err

    return run


@pytest.fixture
def shared(net):
    """The network's directory with host-local's files."""
    net.dir.mkdir(parents=True)
    for name, content in {
        "10.0.0.2": "c1\r\nnet1", "fd00::2": "c1\r\nnet1", "10.0.0.7": "c2\r\nnet1", "fd00::7": "c2\r\nnet1",
        "last_reserved_ip.0": "10.0.0.7", "last_reserved_ip.1": "fd00::7", "lock": "",
    }.items():  # fmt: skip
        (net.dir / name).write_bytes(content.encode())
    return net.dir


def test_what_host_local_gave_is_given_to_nobody(net, shared):
    """Until an import ADD and STATUS fail with error 7, even with mode 700, the remedy of another error 7; DEL
    succeeds."""
    for mode in (0o755, 0o700):
        shared.chmod(mode)
        for command in ("ADD", "STATUS"):
            answer = net.call(command, "new")
            assert answer["code"] == 7
            assert "files of host-local for 4 addresses (10.0.0.2, 10.0.0.7, fd00::2, ...)" in answer["msg"]
            assert f"hpn ipam import --from host-local {shared} --data-dir {shared.parent}" in answer["msg"]
        assert net.call("DEL", "new") == {}, "a pod must be deletable"
    assert net.leases() == {}
    assert not net.file.exists()


def test_import_into_host_locals_own_directory(hpn, net, shared):
    command = ("import", "--from", "host-local", shared)
    assert "net: would import 2 leases" in hpn(*command, "--dry-run")
    assert not net.file.exists()
    assert "net: imported 2 leases" in hpn(*command)
    held = {"c1:net1": ("10.0.0.2", "fd00::2"), "c2:net1": ("10.0.0.7", "fd00::7")}
    assert net.leases() == held
    assert net.agrees()
    assert not set(net.add("c3")) & {"10.0.0.2", "fd00::2", "10.0.0.7", "fd00::7"}
    assert net.add("c1") == held["c1:net1"]
    assert net.call("DEL", "c1") == {}
    net.add("c4")
    assert "net: imported 0 leases" in hpn(*command)
    assert sorted(path.name for path in (shared / "host-local").iterdir()) == [
        "10.0.0.2", "10.0.0.7", "fd00::2", "fd00::7",
    ]  # fmt: skip


def test_what_host_local_gave_after_the_import_is_given_to_nobody(hpn, net, shared):
    hpn("import", "--from", "host-local", shared)
    (shared / "10.0.0.8").write_bytes(b"late\r\nnet1")
    assert "10.0.0.8" in net.call("ADD", "new")["msg"]
    hpn("import", "--from", "host-local", shared)
    assert "10.0.0.8" not in net.add("new")
    assert net.leases()["late:net1"] == ("10.0.0.8",)


def test_what_host_local_only_remembers_stops_nobody(net, shared):
    """ADD succeeds if host-local's pods are gone, although the files of its last addresses and its lock remain."""
    for path in [*shared.glob("10.*"), *shared.glob("fd00*")]:
        path.unlink()
    shared.chmod(0o700)
    net.add("new")


def test_import_that_host_local_comes_between(hpn, net, shared, monkeypatch):
    """host-local, which uses the same lock, allocates an address after the import read its files; the import fails."""
    adopt = FileStore.adopt

    def adopts_late(store, leases, **more):
        done = adopt(store, leases, **more)
        (shared / "10.0.0.8").write_bytes(b"late\r\nnet1")
        return done

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "adopt", adopts_late)
        assert "repeat the import" in hpn("import", "--from", "host-local", shared, status=1)
    assert "10.0.0.8" in net.call("ADD", "new")["msg"]
    hpn("import", "--from", "host-local", shared)
    assert net.leases().keys() == {"c1:net1", "c2:net1", "late:net1"}
    net.add("new")


def test_import_into_a_directory_that_others_can_change(hpn, net, shared):
    shared.chmod(0o777)
    assert "others than root can change" in hpn("import", "--from", "host-local", shared, status=1)
    assert shared.stat().st_mode & 0o777 == 0o777
    assert not net.file.exists()
