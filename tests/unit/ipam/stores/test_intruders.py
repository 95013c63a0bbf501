"""Anything but a regular file in the place of a store's file: it goes to quarantine, and no call blocks on it."""

import json
import os
import shutil
import socket
from contextlib import closing
from pathlib import Path

import pytest
from support.ipam_calls import Net

from base.protocol.errors import IoFailure
from ipam.stores.files.store import FileStore

IPAM = {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}


@pytest.fixture
def net(tmp_path):
    return Net(tmp_path, json.loads(json.dumps(IPAM)))


WHAT = ["directory", "fifo", "link", "socket"]


def put(what, path):
    """Put something else in a file's place."""
    if path.exists():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    match what:
        case "directory":
            path.mkdir()
            (path / "file").write_text("kept")
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/etc/passwd")
        case "socket":
            with closing(socket.socket(socket.AF_UNIX)) as sock:
                sock.bind(os.path.relpath(path))


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", ["leases", "index", "ranges", "quarantine"])
@pytest.mark.parametrize("command", ["ADD", "DEL", "GC", "STATUS", "CHECK"])
def test_no_file(net, name, what, command):
    """It goes to quarantine, and known leases stay held."""
    if (name, what) == ("quarantine", "directory"):
        return  # as it should be
    a, b = net.add("a"), net.add("b")
    passwd = Path("/etc/passwd").read_bytes()
    put(what, net.dir / name)
    if name == "quarantine":
        net.overwrite(net.line("b"), b"#")
    reply = net.reply(command, "c")
    assert reply.exit_code == 0 or (command, '"code":107' in reply.stdout) == ("CHECK", True)
    net.ipam["ranges"][0][0]["rangeEnd"] = "10.0.0.99"  # so that ranges are written
    assert set(net.add("d")).isdisjoint({*a, *b})
    for cid in "ab":
        if net.call("DEL", cid):
            assert net.call("DEL", cid) == {}
    assert net.held().isdisjoint({*a, *b})
    assert net.agrees()
    there = [*net.dir.glob("quarantine/*"), *net.dir.glob("quarantine.*")]
    assert any((path.name == f"{name}.0" and not path.is_file()) or path.is_symlink() for path in there), there
    assert Path("/etc/passwd").read_bytes() == passwd


@pytest.mark.parametrize("what", ["directory", "link"])
def test_no_lock_is_an_error_that_names_it(net, what):
    net.add("a")
    put(what, net.dir / "lock")
    for command in ("ADD", "DEL", "CHECK", "GC"):
        answer = net.call(command, "a")
        assert answer["code"] == 5
        assert f"{net.dir}/lock" in answer["msg"]
        assert "remove" in answer["msg"]


@pytest.mark.parametrize("size", [1 << 30, 1 << 40])
def test_a_file_that_is_said_to_be_huge(net, size):
    a = net.add("a")
    os.truncate(net.file, size)
    assert set(net.add("b")).isdisjoint(a)
    assert net.call("DEL", "a") == {}
    assert net.agrees()


def test_verify_of_what_is_no_file(net):
    """It reports this and closes nothing twice, because another thread may already use the descriptor's number."""
    net.add("c")
    net.file.unlink()
    os.mkfifo(net.file)
    with pytest.raises(IoFailure, match="not a file; move it away"):
        FileStore(net.dir, []).verify()
