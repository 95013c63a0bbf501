"""hpn node --metrics by its unit: both forms of address in the sandbox, and the drop-in of docs/user/metrics.md."""

import json
import re
import shutil
import socket
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

from guest.machine import rdma
from support.topology import until

ROOT = Path(__file__).parents[2]
DROP_IN = Path("/etc/systemd/system/hpn-node.service.d/metrics.conf")
UNIX, PORT = "unix:/run/hpn/metrics.sock", "127.0.0.1:9617"
HCA = "hca0v0"
CONF = {
    "cniVersion": "1.1.0", "name": "rail1", "type": "hpn", "pf": "rail0",
    "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.57.0.0/24"}]]},
}  # fmt: skip


class Machine(Protocol):
    """A machine with systemd (guest.units)."""

    def run(self, *words: str, stdin: str = "", **env: str) -> CompletedProcess[str]: ...


def check(machine: Machine) -> None:
    """Check that hpn node serves metrics as documented.  Raises AssertionError."""
    address, namespaces = documented()
    serve(machine, address.replace(PORT, UNIX))
    assert Path(UNIX.removeprefix("unix:")).stat().st_mode & 0o777 == 0o600
    call(machine, "STATUS")
    until(lambda: ended("STATUS") in page(UNIX), 120)  # the cached page is served for a while
    topics = re.findall(r'hpn_problems{topic="(\w+)"} (\S+)', page(UNIX))
    assert topics
    assert {value for _, value in topics} == {"0.0"}, topics

    (netdev,) = Path("/sys/class/net/rail0/device/virtfn0/net").iterdir()
    rdma("link", "add", HCA, "type", "testhca", "netdev", netdev.name)
    serve(machine, address)
    call(machine, "ADD")
    until(lambda: ended("ADD") in page(PORT), 120)
    assert HCA not in page(PORT)  # it is in the pod
    serve(machine, address + namespaces)
    until(lambda: f'hpn_rdma_port_active{{port="1",rdma_dev="{HCA}"}}' in page(PORT), 120)
    call(machine, "DEL")

    shutil.rmtree(DROP_IN.parent)
    told(machine, "daemon-reload")
    told(machine, "restart", "hpn-node.service")
    rdma("link", "delete", HCA)


def documented() -> list[str]:
    """The [Service] lines of docs/user/metrics.md: the address, and the rights to enter namespaces."""
    found = re.findall(r"\[Service\]\n((?: +\w+=.*\n)+)", (ROOT / "docs" / "user" / "metrics.md").read_text())
    assert ["ExecStart" in lines for lines in found] == [True, False]
    return [re.sub("^ +", "", lines, flags=re.MULTILINE) for lines in found]


def serve(machine: Machine, lines: str) -> None:
    """Start hpn node with these lines in its section [Service]."""
    DROP_IN.parent.mkdir(exist_ok=True)
    DROP_IN.write_text(f"[Service]\n{lines}")
    told(machine, "daemon-reload")
    told(machine, "restart", "hpn-node.service")


def told(machine: Machine, *words: str) -> None:
    done = machine.run("systemctl", *words)
    assert done.returncode == 0, done


def call(machine: Machine, verb: str) -> None:
    """Call the plugin without the agent."""
    env = {
        "CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_IFNAME": "hpn0", "CNI_NETNS": "/run/netns/pod",
        "CNI_PATH": "/opt/cni/bin", "HPN_AGENT": "",
    }  # fmt: skip
    done = machine.run("/opt/cni/bin/hpn", stdin=json.dumps(CONF), **env)
    assert done.returncode == 0, done


def ended(verb: str) -> str:
    return f'hpn_commands_total{{code="0",kind="sriov",verb="{verb}"}} 1.0'


def page(address: str) -> str:
    """The page at that address; the network and /run are the guest's."""
    found = b""
    with socket.socket(socket.AF_UNIX if address == UNIX else socket.AF_INET) as sock:
        sock.settimeout(60)
        sock.connect(UNIX.removeprefix("unix:") if address == UNIX else ("127.0.0.1", 9617))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while more := sock.recv(1 << 16):
            found += more
    assert found.split(b" ", 2)[1] == b"200", found
    return found.decode()
