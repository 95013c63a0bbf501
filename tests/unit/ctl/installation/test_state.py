"""hpn install checks, before it replaces anything, that it understands the node's state."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest
from support.installed import ROOT, UNITS, program, tree
from unit.ctl.test_inspect import VF, save

from base.protocol.errors import IoFailure
from base.state import durable
from ctl.installation.command import answer_install, install

RECORD = "run/hpn/attachments/rail0/0123456789abcdef:hpn0.json"


def written(root: Path, **members: object) -> Path:
    """Write a record with these members changed, as another version could."""
    save(root / "run" / "hpn", VF)
    path = root / RECORD
    document = json.loads(path.read_text())
    body = document["body"] | members
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps(document | {"body": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}))
    return path


def leases(root: Path, *lines: str, data_dir: str = "var/lib/cni/hpn/ipam") -> Path:
    """Write a file of leases with these lines, each with its checksum."""
    path = root / data_dir / "rail0" / "leases"
    path.parent.mkdir(parents=True)
    sealed = (line[:-1].encode() for line in lines)
    path.write_bytes(b"".join((one + b',"crc":"%08x"}' % crc32(one)).ljust(511) + b"\n" for one in sealed))
    return path


def refused(root: Path, folder: Path, path: Path, why: str) -> None:
    """Assert that install and its check fail with a message that names the file, and replace nothing."""
    before = tree(root)
    with pytest.raises(IoFailure, match=re.escape(f"{path}{why}")) as e:
        install(root, program(folder), UNITS, "")
    assert "nothing was replaced" in e.value.msg
    with pytest.raises(IoFailure, match=re.escape(f"{path}{why}")):
        checked(root)
    assert tree(root) == before


def checked(root: Path) -> tuple[str, int]:
    """Return the output and the status of hpn install --check."""
    return answer_install(["--check", "--root", f"{root}"], "", "")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        (
            {"later": 1},
            " is a record of another version (Record.__init__() got an",
        ),
        ({"kind": "later"}, " is of kind 'later', which this version does not have"),
        ({"key": {"name": "c"}}, " is a record of another version ("),
    ],
)
def test_a_record_of_a_newer_version(root: Path, tmp_path: Path, members: dict[str, object], why: str) -> None:
    refused(root, tmp_path, written(root, **members), why)


def test_a_record_of_another_schema(root: Path, tmp_path: Path) -> None:
    path = written(root)
    path.write_text(json.dumps({"schema": 2, "anything": "else"}))
    refused(root, tmp_path, path, " has schema 2, and this version reads 1")


@pytest.mark.parametrize("what", ["fifo", "link"])
@pytest.mark.parametrize("command", [["install", "--check"], ["install", "--dry-run"], ["uninstall", "--check"]])
def test_a_fifo_in_place_of_a_record(root: Path, what: str, command: list[str]) -> None:
    """A FIFO counts as damage, which every version sets aside; no command waits for its other end."""
    path = written(root)
    path.unlink()
    os.mkfifo(path if what == "fifo" else root / "fifo")
    if what == "link":
        path.symlink_to(root / "fifo")
    argv = [sys.executable, "-m", "ctl", *command, "--root", f"{root}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert "Traceback" not in done.stderr
    assert "schema" not in done.stdout + done.stderr


def test_a_record_without_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema of an oversized record is not read, because no version writes such a record."""
    path = written(root)
    path.write_text(json.dumps({"schema": 2}).ljust(1 << 18))
    with pytest.raises(IoFailure, match="has schema 2"):
        checked(root)
    monkeypatch.setattr(durable, "_MOST", 1 << 17)
    assert "schema" not in checked(root)[0]


@pytest.mark.parametrize("data_dir", ["var/lib/cni/hpn/ipam", "run/hpn/ipam"])
def test_leases_of_another_schema(root: Path, tmp_path: Path, data_dir: str) -> None:
    path = leases(root, '{"schema": 2}', data_dir=data_dir)
    refused(root, tmp_path, path, " has schema 2, and this version reads 1; nothing")


def test_a_line_of_a_newer_version(root: Path, tmp_path: Path) -> None:
    path = leases(root, '{"schema": 1}', '{"block":"10.0.0.0/26","node":"n1"}')
    refused(root, tmp_path, path, ": line 1 was written by another version (not a lease (KeyError: 'addresses'))")


def test_all_that_are_unknown_are_counted(root: Path, tmp_path: Path) -> None:
    written(root, later=1)
    leases(root, '{"schema": 2}')
    with pytest.raises(IoFailure, match=r"argument 'later'\), and 1 more; nothing"):
        install(root, program(tmp_path), UNITS, "")


def test_what_is_read_or_damaged_is_no_obstacle(root: Path, tmp_path: Path) -> None:
    """No version reads damaged files, and every version sets them aside."""
    damaged = written(root).with_name("c2:hpn0.json")
    damaged.write_bytes((root / RECORD).read_bytes()[:100])
    damaged.with_name("c3:hpn0.json").write_text((root / RECORD).read_text().replace("rail0", "rail1"))
    path = leases(root, '{"schema": 1}')
    path.write_bytes(path.read_bytes() + b"not a lease".ljust(511) + b"\n")
    state = {name: text for name, text in tree(root).items() if name.startswith(("run", "var"))}
    assert checked(root) == ("this version understands the state on this node\n", 0)
    install(root, program(tmp_path), UNITS, "")
    assert state.items() <= tree(root).items()
    assert "opt/cni/bin/hpn" in tree(root)


def node_file(root: Path, *, more: str = "") -> Path:
    path = root / "etc" / "hpn" / "devices.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{{resources: [{{name: rail0, kind: master, selectors: {{ifNames: [rail0]}}}}]{more}}}\n")
    return path


def test_a_file_that_hpn_node_of_this_version_refuses(root: Path, tmp_path: Path) -> None:
    """A newer version's key stops the install: after a rollback hpn node would offer nothing."""
    node_file(root)
    install(root, program(tmp_path), UNITS, "")
    before = tree(root) | {"etc/hpn/devices.yaml": node_file(root, more=", later: 1").read_text()}
    with pytest.raises(IoFailure, match=r"would refuse its file; nothing was replaced\..*devices\.yaml: .*later"):
        install(root, program(tmp_path, "two"), UNITS, "")
    with pytest.raises(IoFailure, match=r"would refuse its file"):
        checked(root)
    assert tree(root) == before


def test_a_file_that_no_hpn_node_reads(root: Path, tmp_path: Path) -> None:
    """The file does not matter if hpn node is disabled, or starts from another place."""
    node_file(root)
    install(root, program(tmp_path), UNITS, "")
    node_file(root, more=", later: 1")
    install(root, program(tmp_path, "two"), {}, "")
    (root / "etc/systemd/system/multi-user.target.wants/hpn-node.service").unlink()
    assert checked(root)[1] == 0
    install(root, program(tmp_path, "three"), UNITS, "")
    assert tree(root)["opt/cni/bin/hpn"] == (tmp_path / "hpn-three").read_text()


def test_a_policy_file_that_each_add_refuses(root: Path, tmp_path: Path) -> None:
    """Another version may know other keys: its install would stop every ADD of the node."""
    install(root, program(tmp_path), UNITS, "")
    file = root / "etc/hpn/policy.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"allowedPaths": {"dataDir": ["*"]}}')
    before = tree(root)
    for refused in (lambda: install(root, program(tmp_path, "two"), {}, ""), lambda: checked(root)):
        with pytest.raises(IoFailure, match=r"would fail; nothing was replaced\..*policy\.json: .*dataDir \['\*'\] is"):
            refused()
    assert tree(root) == before
    file.write_text('{"allowedPaths": {"stateDir": ["/var/lib/tenants"]}}')
    install(root, program(tmp_path, "two"), {}, "")
