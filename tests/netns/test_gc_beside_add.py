"""GC leaves attachments alone that began or ended after its own start: record, link and lease together."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from support import chained, listed_rails
from support.topology import Host, Pod, until

from base.protocol.spec import Key, Request
from base.state import journal
from cni.main import run as hpn
from ipam.main import ask as hpn_ipam

ROOT = Path(__file__).parents[2]
NOTHING = {"cni.dev/valid-attachments": []}


def test_an_add_beside_gcs_ipam(host: Host, make_pod: Callable[[], Pod]) -> None:
    """GC keeps the attachment of an ADD during the call of its IPAM, although the runtime's list lacks it."""
    old, new, during = make_pod(), make_pod(), list[dict[str, Any]]()
    host.ok("ADD", old)

    def late(request: Request, log: list[str]) -> Any:
        if request.command == "GC":
            during.append(host.ok("ADD", new))
        return hpn_ipam(request, log)

    request = host.request("GC", None, host.conf(**NOTHING), CNI_IFNAME="")
    reply = hpn(request, {"hpn-ipam": late})
    assert (reply.exit_code, reply.stdout) == (0, "")
    assert (old.links(), new.links()) == (set(), {"hpn0"})
    assert host.leases() == {ip["address"].partition("/")[0] for ip in during[0]["ips"]}
    assert host.checked(new, host.conf(), during[0]).exit_code == 0


def test_an_add_while_gc_waits_for_a_lock(host: Host, make_pod: Callable[[], Pod]) -> None:
    old, new = make_pod(), make_pod()
    host.ok("ADD", old)
    conf, key = host.conf(**NOTHING), Key(old.name, "hpn0")
    with ThreadPoolExecutor() as threads:
        with journal.lock(host.state, "rail0", key):
            reply = threads.submit(host.call, "GC", None, conf, CNI_IFNAME="")
            until(lambda: lock_users(host) == 2)
            result = host.ok("ADD", new)
        assert reply.result().exit_code == 0
    assert (old.links(), new.links()) == (set(), {"hpn0"})
    assert host.leases() == {ip["address"].partition("/")[0] for ip in result["ips"]}


def test_an_attachment_made_again_while_gc_waits(host: Host, pod: Pod) -> None:
    """GC keeps an attachment with a new record since its start, which the list cannot contain."""
    host.ok("ADD", pod)
    conf, key = host.conf(**NOTHING), Key(pod.name, "hpn0")
    with ThreadPoolExecutor() as threads:
        with journal.lock(host.state, "rail0", key) as entry:
            reply = threads.submit(host.call, "GC", None, conf, CNI_IFNAME="")
            until(lambda: lock_users(host) == 2)
            record = entry.load()
            assert record
            entry.save(record)
        assert reply.result().exit_code == 0
    assert pod.links() == {"hpn0"}
    assert host.record(pod).exists()
    assert len(host.leases()) == 2


def test_rails_whose_add_ends_while_gc_waits(host: Host, pod: Pod) -> None:
    """As a single attachment: the runtime lists them after the end of ADD."""

    def slow(request: Request, log: list[str]) -> Any:
        if request.command == "ADD":
            is_under_way.set()
            until(lambda: lock_users(host, "chain") == 2)
        return hpn_ipam(request, log)

    chained.add_rails()
    is_under_way, conf = Event(), listed_rails.conf(host)
    with ThreadPoolExecutor() as threads:
        added = threads.submit(hpn, host.request("ADD", pod, conf), {"hpn-ipam": slow})
        assert is_under_way.wait(60)
        reply = host.call("GC", None, conf | NOTHING, CNI_IFNAME="")
        assert (added.result().exit_code, reply.exit_code) == (0, 0)
    assert pod.links() == {"hpn0", "hpn1"}
    assert len(host.leases()) == 4
    host.ok("GC", None, conf | NOTHING, CNI_IFNAME="")
    assert (pod.links(), host.state_files()) == (set(), set())


def test_an_add_before_gcs_program_is_up(host: Host, make_pod: Callable[[], Pod]) -> None:
    """GC begins with its process, so it keeps attachments from before its program runs, which takes long on a busy
    machine."""
    old, new = make_pod(), make_pod()
    conf = host.conf(ipam=..., **NOTHING)
    request = host.request("GC", None, conf, CNI_IFNAME="")
    host.ok("ADD", old, conf)
    os.utime(host.record(old), (0, 0))
    gc = [sys.executable, "-m", "cni"]
    with subprocess.Popen(gc, env=request.environ, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        host.ok("ADD", new, conf)
        assert process.communicate(json.dumps(conf).encode())[0] == b""
    assert process.returncode == 0
    assert (old.links(), new.links()) == (set(), {"hpn0"})


def test_a_record_of_the_future(host: Host, pod: Pod) -> None:
    """A record's time in the future, from a wrong clock, does not protect it from GC."""
    conf = host.conf(ipam=..., **NOTHING)
    host.ok("ADD", pod, conf)
    os.utime(host.record(pod), (1 << 33, 1 << 33))
    request = replace(host.request("GC", None, conf, CNI_IFNAME=""), process=os.getpid())
    assert hpn(request, {}).exit_code == 0
    assert pod.links() == set()


def lock_users(host: Host, what: str = "attachment") -> int:
    """The number of this process's descriptors for locks of attachments, or of chains."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{host.state}/locks/{what}-")
    return count
