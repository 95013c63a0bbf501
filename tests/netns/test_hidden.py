"""If /proc or /sys is missing, hidden or read-only, or the kernel lacks RDMA, a message reports it.  The command
changes nothing and forgets nothing.

The plugin runs as a process in its own mount namespace with something hidden.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.topology import Host, Pod

from base.kernel import rdma_netlink

ROOT = Path(__file__).parents[2]
HIDDEN = {
    "no /proc": "mount -t tmpfs tmpfs /proc",
    "no /proc/sys": "mount -t tmpfs tmpfs /proc/sys",
    "processes alone": "mount -t proc -o subset=pid proc /proc",
    "/proc/sys read-only": "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys",
    "no /sys": "mount -t tmpfs tmpfs /sys",
    "no IPv6": "mount -t tmpfs tmpfs /proc/sys/net && cd /proc/sys/net && mkdir -p ipv4/conf/lo && "
    "touch ipv4/conf/lo/arp_notify && cd /",  # the state after ipv6.disable=1
}
# For each case, the codes of ADD, STATUS and DEL, with 0 for success, and words of their messages.
ANSWERS = {
    "no /proc": ((5, 5, 5), "/proc/self/environ cannot be read"),
    "no /proc/sys": ((105, 50, 5), "something hides it"),
    "processes alone": ((105, 50, 5), "something hides it"),
    "/proc/sys read-only": ((105, 50, 0), "/proc/sys is mounted read-only"),
    "no /sys": ((105, 0, 0), "something hides it"),
    "no IPv6": ((7, 50, 0), "boot it without ipv6.disable=1, or remove that range from ipam"),
}


def call(what: str, host: Host, command: str, pod: Pod, **keys: Any) -> dict[str, Any]:
    """The program's answer; empty if it prints none."""
    request = host.request(command, pod, host.conf(**keys))
    script = f'{HIDDEN[what]} && exec "$@"'
    program = [sys.executable, "-m", "ctl"]
    alone = ["unshare", "--mount", "--propagation=private", "sh", "-euc", script, "sh", *program]
    environ = {**request.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(alone, env=environ, input=request.stdin, capture_output=True, check=False)
    assert done.stderr == b""
    answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    assert (done.returncode != 0) == ("code" in answer)
    return answer


@pytest.mark.parametrize("what", HIDDEN)
def test_what_is_hidden_is_said(host: Host, make_pod: Callable[[], Pod], what: str) -> None:
    old, new = make_pod(), make_pod()
    host.ok("ADD", old)
    before = host.picture(old, new)
    (of_add, of_status, of_del), words = ANSWERS[what]
    for command, code in (("STATUS", of_status), ("ADD", of_add)):
        answer = call(what, host, command, new)
        assert answer.get("code", 0) == code, answer
        assert not code or words in answer["msg"]
    if of_add:
        assert host.picture(old, new) == before
    answer = call(what, host, "DEL", old)
    assert answer.get("code", 0) == of_del, answer
    if of_del:
        assert "run: mount -t proc proc /proc" in answer["msg"]
        assert (old.links(), host.record(old).exists()) == ({"hpn0"}, True)
    for pod in (old, new):
        host.ok("DEL", pod)
        assert pod.links() == set()
    assert os.listdir(host.state / "attachments/rail0") == []


ASKING: list[dict[str, Any]] = [
    {"rdma": {"required": True}},
    {"rdma": {"mode": "rxe"}},
    {"rdma": {"mode": "exclusive"}, "kind": "host-device", "master": ..., "device": "fabric"},
]


@pytest.mark.parametrize("keys", ASKING, ids=lambda keys: str(keys["rdma"]))
def test_a_kernel_without_rdma(host: Host, pod: Pod, keys: dict[str, Any]) -> None:
    """Requests for RDMA are refused before any change, and all others succeed."""
    if rdma_netlink.is_exclusive() is not None:
        pytest.skip("this kernel has RDMA")
    before = host.picture(pod)
    for command, code in (("STATUS", 50), ("ADD", 101)):
        error = host.refused(command, pod, host.conf(**keys))
        assert (error["code"], "the kernel has no RDMA; " in error["msg"], "CONFIG_" in error["msg"]) == (
            code,
            True,
            True,
        )
    assert host.picture(pod) == before
    host.ok("ADD", pod)
    host.ok("DEL", pod, host.conf(**keys))
    assert pod.links() == set()
