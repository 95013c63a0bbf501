"""The author of a NetworkAttachmentDefinition controls every key, and gains no root access to the host."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.elapsed import Elapsed
from support.topology import Host, Pod

from base.protocol.errors import InvalidConfig, IoFailure
from base.state import policy
from cni.features import device_info

SLOW = 10.0  # seconds that no call takes
VF = {"device": "0000:3b:10.1", "pf": "0000:3b:00.0"}


@pytest.fixture
def allowed(tmp_path: Path, node_file: Path) -> Path:
    """The only directory that the node's administrator allows."""
    folder = tmp_path / "allowed"
    folder.mkdir()
    node_file.write_text(json.dumps({"allowedPaths": {key: [str(folder)] for key in policy.DEFAULTS}}))
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the host that nothing may read or write."""
    file = tmp_path / "shadow"
    file.write_text('nameserver 192.0.2.66\n{"type": "pci"}\n')
    return file


@pytest.fixture(
    params=[
        *("/dev/zero", "/proc/self/environ", "{victim}", "{allowed}/../shadow", "{allowed}/./../shadow"),
        *("{allowed}/link", "{allowed}/folder-link/shadow", "{allowed}/fifo", "{allowed}/folder", "{allowed}/zero"),
        *("{allowed}-not/x", "{allowed}"),
    ]
)
def elsewhere(request: pytest.FixtureRequest, allowed: Path, victim: Path) -> str:
    """A path outside the allowed directory, or one without a regular file."""
    (allowed / "link").symlink_to(victim)
    (allowed / "folder-link").symlink_to(victim.parent)
    (allowed / "folder").mkdir()
    os.mkfifo(allowed / "fifo")
    os.mknod(allowed / "zero", 0o20600, os.makedev(1, 5))
    return str(request.param).format(victim=victim, allowed=allowed)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    elapsed = Elapsed()
    yield
    assert elapsed.seconds() < SLOW


def resolving(host: Host, path: str) -> dict[str, Any]:
    conf = host.conf()
    conf["ipam"]["resolvConf"] = path
    return conf


def listing(folder: Path) -> dict[str, int]:
    """All paths in the folder except the state, with their sizes."""
    files = {str(p.relative_to(folder)): p.lstat().st_size for p in folder.rglob("*")}
    return {name: size for name, size in files.items() if not name.startswith("state")}


def test_log_file(host: Host, pod: Pod, victim: Path, elsewhere: str) -> None:
    """Commands refuse the path before any change, and DEL and GC succeed without it."""
    host.ok("ADD", pod)
    before = listing(host.tmp_path)
    conf = host.conf(logFile=elsewhere, logLevel="debug")
    for command in ("ADD", "CHECK", "STATUS"):
        error = host.refused(command, pod, conf)
        assert (error["code"], elsewhere in error["msg"], "logFile" in error["msg"]) == (7, True, True), error
    for command in ("GC", "DEL"):
        reply = host.call(command, pod, conf | {"cni.dev/valid-attachments": []})
        assert reply.exit_code == 0, reply
        assert any("logFile" in line and elsewhere in line for line in reply.log)
    assert pod.links() == set()
    assert listing(host.tmp_path) == before
    assert victim.read_text() == 'nameserver 192.0.2.66\n{"type": "pci"}\n'


def test_resolv_conf(host: Host, pod: Pod, elsewhere: str) -> None:
    refused_to_resolve(host, pod, elsewhere)


def test_resolv_conf_of_the_hosts_secrets(host: Host, pod: Pod, allowed: Path) -> None:
    """ADD and STATUS refuse /etc/shadow.  The list above omits it, because test_log_file would write to a log that is
    not refused."""
    refused_to_resolve(host, pod, "/etc/shadow")


def refused_to_resolve(host: Host, pod: Pod, elsewhere: str) -> None:
    for command in ("ADD", "STATUS"):
        error = host.refused(command, pod, resolving(host, elsewhere))
        assert (error["code"], elsewhere in error["msg"], "ipam.resolvConf" in error["msg"]) == (7, True, True), error
        assert not any(word in json.dumps(error) for word in ("192.0.2.66", "root:", "PATH="))
    assert (pod.links(), host.state_files()) == (set(), set())


def test_device_information(victim: Path, elsewhere: str) -> None:
    """The path comes from runtimeConfig, which Multus sets and the author of a configuration can set."""
    with pytest.raises(InvalidConfig) as e:
        device_info.plan({"runtimeConfig": {"CNIDeviceInfoFile": elsewhere}}, VF)
    assert elsewhere in e.value.msg
    assert "CNIDeviceInfoFile" in e.value.msg
    assert '"type"' in victim.read_text()


def test_device_information_that_changes_meanwhile(allowed: Path, victim: Path) -> None:
    """Neither the write nor its undo follows a link that appears after ADD's check."""
    folder = allowed / "cni"
    folder.mkdir()
    planned = device_info.plan({"runtimeConfig": {"CNIDeviceInfoFile": f"{folder}/pod"}}, VF)
    (folder / "pod.hpn").symlink_to(victim)
    (folder / "pod").symlink_to(victim)
    device_info.write(planned, VF, [], [])
    assert "192.0.2.66" in victim.read_text()
    (folder / "pod").unlink()
    folder.rmdir()
    folder.symlink_to(victim.parent)
    (victim.parent / "pod").write_text("precious")
    with pytest.raises(IoFailure, match="Not a directory"):
        device_info.undo(planned)
    assert (victim.parent / "pod").read_text() == "precious"


def test_defaults(host: Host, pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default paths apply without a policy file."""
    monkeypatch.setattr(policy, "FILE", str(tmp_path / "absent.json"))
    for path in ("/etc/passwd", "/root/.bashrc", "/run/systemd/resolve/../../../etc/passwd", "/etc/resolv.conf.d/x"):
        assert host.refused("STATUS", None, resolving(host, path))["code"] == 7
    for path in (f"{tmp_path}/log", "/var/log/hpnx/log", "/nonexistent/log"):
        assert "not below /var/log/hpn," in host.refused("STATUS", None, host.conf(logFile=path))["msg"]
    resolv = Path("/etc/resolv.conf")  # a link on many nodes
    if resolv.exists():
        host.ok("STATUS", None, resolving(host, str(resolv)))


def test_sizes(host: Host, allowed: Path) -> None:
    file = allowed / "resolv.conf"
    file.write_text("# \n" * 30_000)
    assert "longer than 65536 bytes" in host.refused("STATUS", None, resolving(host, str(file)))["msg"]
    file.write_text('"' + "x" * (1 << 20) + '"')
    with pytest.raises(InvalidConfig, match="longer than 1048576 bytes"):
        device_info.plan({"runtimeConfig": {"CNIDeviceInfoFile": str(file)}}, VF)


BROKEN = [
    *("", "{", "[]", "[" * 100_000, '{"allowedPath": {}}', '{"allowedPaths": []}', '{"allowedPaths": {"logfile": []}}'),
    *('{"allowedPaths": {"logFile": "/"}}', '{"allowedPaths": {"logFile": ["x"]}}', "\\xff"),
    '{"allowedPaths": {"logFile": ["/a/../b"]}}',
    "x" * 70_000,
]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_node_file(host: Host, pod: Pod, node_file: Path, text: str) -> None:
    """ADD and STATUS refuse every configuration with the path of the broken file; DEL and GC still succeed."""
    host.ok("ADD", pod)
    node_file.write_text(text)
    conf = host.conf(logFile=str(host.tmp_path / "log"))
    for command in ("ADD", "STATUS"):
        error = host.refused(command, pod, conf)
        assert (error["code"], str(node_file) in error["msg"], "correct it" in error["msg"]) == (7, True, True), error
    assert host.call("DEL", pod, conf).log
    assert (pod.links(), (host.tmp_path / "log").exists()) == (set(), False)
    assert str(node_file) in host.refused("STATUS", None)["msg"]
    host.ok("GC", None, host.conf() | {"cni.dev/valid-attachments": []})


@pytest.mark.parametrize(
    ("owner", "mode", "remedy"),
    [(65534, 0o644, "chown root:root"), (0, 0o664, "chmod go-w"), (0, 0o646, "chmod go-w")],
)
def test_a_node_file_of_others(host: Host, node_file: Path, owner: int, mode: int, remedy: str) -> None:
    os.chown(node_file, owner, 0)
    node_file.chmod(mode)
    error = host.refused("STATUS", None, host.conf(logFile=str(host.tmp_path / "log")))
    assert (error["code"], f"then: {remedy} {node_file}" in error["msg"]) == (7, True)


# No environment can hold half of a pair of UTF-16.
STRINGS = ["a\nb", 'a"b', "' $(touch X) #", "a\\", "\x00", "\x1b[2J", "\u2028", "{}\n{}"]
STRINGS.append(pytest.param("\ud800", marks=pytest.mark.own_process))


@pytest.mark.parametrize("text", STRINGS, ids=repr)
def test_the_log_is_a_line_of_json_each(host: Host, pod: Pod, allowed: Path, text: str) -> None:
    log = allowed / "log"
    conf = host.conf(logFile=str(log), logLevel="debug")
    for key in ("mode", "master", "mac", "kind", "dad", "stateDir", text):
        host.refused("ADD", pod, conf | {key: text}, CNI_ARGS=f"K8S_POD_NAME={text}".replace("\0", ""))
    host.refused("ADD", pod, conf | {"ipam": {"type": text}})
    lines = [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]
    assert [line["level"] for line in lines].count("error") == 8
    assert all(line["network"] == "rail0" for line in lines)
