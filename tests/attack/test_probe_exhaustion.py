"""A pod that answers every probe cannot withhold addresses from other pods."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any

import pytest
from support.topology import Host, Pod, leases, until

from ctl.main import main

RANGES = [[{"subnet": "10.56.0.0/26"}]]
SIZE = 61
# The most that the key allows.  The liar is a process, which needs a processor in this time.  Its answer ends the wait.
PATIENT = 10
QUICK = 0.1  # nothing answers

# Answers every ARP request on hpn0, with its own MAC or with a new one each time.
LIAR = """
import os, socket, sys
sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
sock.bind(("hpn0", 0x0806))
own = sock.getsockname()[4]
print("ready", flush=True)
while True:
    frame = sock.recv(2048)
    if frame[20:22] == b"\\0\\1" and frame[22:28] != own:
        mac = own if sys.argv[1] == "one" else b"\\2" + os.urandom(5)
        sock.send(frame[6:12] + mac + frame[12:20] + b"\\0\\2" + mac + frame[38:42] + frame[22:28] + frame[28:32])
"""


@contextmanager
def lying(pod: Pod, macs: str) -> Iterator[None]:
    words = ["ip", "netns", "exec", pod.name, sys.executable, "-I", "-S", "-c", LIAR, macs]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as liar:
        assert liar.stdout
        assert liar.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            liar.kill()


def conf(host: Host, probe: float = PATIENT) -> dict[str, Any]:
    return host.conf(ipam={"type": "hpn-ipam", "ranges": RANGES, "probe": probe})


def hpn(host: Host, *words: str) -> str:
    with redirect_stdout(StringIO()) as out:
        assert main(["hpn", "ipam", *words, "--data-dir", str(host.state / "ipam")]) == 0
    return out.getvalue()


def conflicts(host: Host) -> int:
    return sum("mac" in line for line in leases(host.state / "ipam", "rail0"))


@pytest.mark.parametrize(("macs", "most"), [("one", 4), ("many", SIZE // 4)])
def test_it_has_few_kept_back(host: Host, make_pod: Callable[[], Pod], macs: str, most: int) -> None:
    liar, victim = make_pod(), make_pod()
    other = host.conf(name="other", ipam={"type": "hpn-ipam", "subnet": "10.57.0.0/24"})
    mac = host.ok("ADD", liar, other)["interfaces"][0]["mac"]
    with lying(liar, macs):
        for _ in range(12):
            error = host.refused("ADD", victim, conf(host))
            assert error["code"] == 104
            if macs == "one":
                assert mac in error["msg"]
                assert "master rail0" in error["msg"]
            assert victim.links() == set()
        assert conflicts(host) == most
    until(lambda: host.call("ADD", victim, conf(host, QUICK)).exit_code == 0)
    shown = json.loads(hpn(host, "show", "--json"))["networks"]
    (pool,) = next(one for one in shown if one["network"] == "rail0")["pools"]
    assert (pool["conflict"], pool["held"], pool["free"]) == (most, 1, SIZE - most - 1)
    assert "another host (MAC" in hpn(host, "gc", "--dry-run")
    assert conflicts(host) == most
    hpn(host, "gc")
    assert conflicts(host) == 0
    host.ok("DEL", victim, conf(host))
    host.ok("DEL", liar, other)


def test_gc_frees_them(host: Host, make_pod: Callable[[], Pod]) -> None:
    liar, victim = make_pod(), make_pod()
    other = host.conf(name="other", ipam={"type": "hpn-ipam", "subnet": "10.57.0.0/24"})
    host.ok("ADD", liar, other)
    with lying(liar, "one"):
        host.refused("ADD", victim, conf(host))
    assert conflicts(host) == 4
    host.ok("GC", None, conf(host) | {"cni.dev/valid-attachments": []})
    assert conflicts(host) == 0
    host.ok("DEL", liar, other)
