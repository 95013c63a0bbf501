"""STATUS prints nothing if the next ADD can succeed, and fails with code 50 otherwise."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.disks import mounted, read_only
from support.topology import Host, Pod, ip


def test_ready(host: Host) -> None:
    reply = host.call("STATUS", None)
    assert (reply.exit_code, reply.stdout) == (0, "")
    assert host.state_files() == set()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"ipam": ...}, "no addresses wanted"),
        ({"linkInContainer": True, "master": "inner0"}, "the master comes with the pod"),
        ({"mtu": 1500}, "as much as the master has"),
    ],
)
def test_ready_with(host: Host, keys: dict[str, Any], why: str) -> None:
    reply = host.call("STATUS", None, host.conf(**keys))
    assert (reply.exit_code, reply.stdout) == (0, ""), why


def test_ready_by_the_default_route(host: Host) -> None:
    ip("addr", "add", "192.0.2.2/24", "dev", "rail0")
    ip("route", "add", "default", "via", "192.0.2.1")
    assert host.call("STATUS", None, host.conf(master=...)).exit_code == 0


def test_ready_by_the_default_route_of_an_object(host: Host) -> None:
    """Such a route names no interface with nexthop_compat_mode=0, which FRR recommends."""
    Path("/proc/sys/net/ipv4/nexthop_compat_mode").write_text("0")
    ip("addr", "add", "192.0.2.2/24", "dev", "rail0")
    ip("nexthop", "add", "id", "7", "via", "192.0.2.1", "dev", "rail0")
    ip("route", "add", "default", "nhid", "7")
    assert host.call("STATUS", None, host.conf(master=...)).exit_code == 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"master": "eth99"}, "'eth99'"),  # missing
        ({"master": ...}, "default route"),  # no default route to derive it from
        ({"mtu": 9000}, "9000"),  # more than the master's, which ADD would refuse
    ],
)
def test_not_ready(host: Host, keys: dict[str, Any], says: str) -> None:
    error = host.refused("STATUS", None, host.conf(**keys))
    assert error["code"] == 50
    assert says in error["msg"]


def test_master_down(host: Host) -> None:
    ip("link", "set", "rail0", "down")
    error = host.refused("STATUS", None)
    assert error["code"] == 50
    assert "ip link set rail0 up" in error["msg"]
    ip("link", "set", "rail0", "up")
    assert host.call("STATUS", None).exit_code == 0


def test_master_without_carrier_is_ready(host: Host) -> None:
    """STATUS succeeds without carrier, as ADD does, because someone may plug in a cable later."""
    ip("link", "set", "fabric", "down")
    assert host.call("STATUS", None).exit_code == 0


@pytest.mark.parametrize("keys", [{}, {"ipam": ...}], ids=["of both", "of the journal alone"])
def test_state_directory_read_only(host: Host, pod: Pod, keys: dict[str, Any]) -> None:
    """STATUS fails on a read-only directory even if an earlier call created all its files."""
    conf = host.conf(**keys)
    with mounted(host.state):
        host.ok("ADD", pod, conf)
        host.ok("DEL", pod, conf)
        assert host.call("STATUS", None, conf).exit_code == 0
        read_only(host.state)
        error = host.refused("STATUS", None, conf)
        assert error["code"] == 50
        assert str(host.state) in error["msg"]
        assert "ead-only" in error["msg"]


def test_state_directory_full(host: Host) -> None:
    with mounted(host.state):
        (host.state / "filler").write_bytes(bytes(1024 * 1024))
        error = host.refused("STATUS", None)
        assert error["code"] == 50
        (host.state / "filler").unlink()
        assert host.call("STATUS", None).exit_code == 0


def test_state_directory_is_a_file(host: Host) -> None:
    host.state.write_text("")
    error = host.refused("STATUS", None)
    assert error["code"] == 50
    assert str(host.state) in error["msg"]


def test_pool_exhausted(host: Host, pod: Pod) -> None:
    conf = host.conf(ipam={"type": "hpn-ipam", "subnet": "10.56.0.0/30"})
    assert host.call("STATUS", None, conf).exit_code == 0
    host.ok("ADD", pod, conf)
    error = host.refused("STATUS", None, conf)
    assert error["code"] == 50
    assert "10.56.0.0/30" in error["msg"]
    host.ok("DEL", pod, conf)
    assert host.call("STATUS", None, conf).exit_code == 0


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ('{"code":4,"msg":"unknown CNI_COMMAND: STATUS"}', 0),  # a plugin from before STATUS
        ('{"code":1,"msg":"incompatible CNI versions"}', 0),  # the same with another error
        ('{"code":50,"msg":"database is away"}', 50),
        ('{"code":51,"msg":"and the pods suffer too"}', 51),  # its own error
        ("oops", 106),  # no CNI answer
    ],
)
def test_a_foreign_ipam(host: Host, answer: str, code: int) -> None:
    path = host.program("script", f"cat >/dev/null; echo '{answer}'; exit 1")
    conf = host.conf(ipam={"type": "script"})
    reply = host.call("STATUS", None, conf, CNI_PATH=path)
    if code:
        assert host.refused("STATUS", None, conf, CNI_PATH=path)["code"] == code
    else:
        assert (reply.exit_code, reply.stdout) == (0, "")


def test_a_foreign_ipam_that_is_not_installed(host: Host) -> None:
    error = host.refused("STATUS", None, host.conf(ipam={"type": "script"}))
    assert error["code"] in (50, 106)
    assert "script" in error["msg"]


def through_multus(conf: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run STATUS in a process with its own /run and /var/lib, because the environment names no other directory."""
    private = 'mount -t tmpfs none /run && mount -t tmpfs none /var/lib && exec "$@"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", private, "sh", sys.executable, "-m", "ctl"],
        input=json.dumps(conf),
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={"CNI_COMMAND": "STATUS", "CNI_PATH": "/nonexistent", "PATH": os.environ["PATH"]},
    )


STRIPPED = {"cniVersion": "1.1.0", "name": "rail0", "type": "hpn", "ipam": {"type": "hpn-ipam"}}


@pytest.mark.parametrize("kept", [{}, {"capabilities": {"ips": True}, "dns": {"domain": "x.example"}}])
def test_stripped_by_multus(host: Host, kept: dict[str, Any]) -> None:
    """STATUS succeeds for a network that Multus 4.3 stripped because it comes from a file.  Addresses and master are
    unknown, and an error would take the node down.  The test has no default route either."""
    done = through_multus(STRIPPED | kept)
    assert (done.returncode, done.stdout) == (0, "")


def test_no_ranges_to_ask_about(host: Host) -> None:
    """STATUS of the IPAM plugin succeeds without ranges, because other main plugins use it, too."""
    assert host.call("STATUS", None, host.conf(ipam={"type": "hpn-ipam"})).exit_code == 0


@pytest.mark.parametrize(
    ("keys", "code", "says"),
    [
        ({"mode": "bridge"}, 50, "master is not set"),  # a configuration, but one that cannot be served
        ({"ipam": {"type": "hpn-ipam", "routes": []}}, 50, "master is not set"),
        ({"master": "rail0", "ipam": {"type": "hpn-ipam", "routes": []}}, 7, "ipam has no range"),
        ({"master": "rail0", "runtimeConfig": {"ipRanges": []}}, 7, "ipam has no range"),
    ],
)
def test_nothing_more_is_passed_over(host: Host, keys: dict[str, Any], code: int, says: str) -> None:
    error = json.loads(through_multus(STRIPPED | keys).stdout)
    assert (error["code"], says in error["msg"]) == (code, True), error
