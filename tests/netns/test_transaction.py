"""Kill the plugin at every boundary between two steps, and see that what is left can always be put right.

A child process runs the real plugin; just before its n-th step that another process could notice (a file
opened for writing, flushed, synced, renamed, removed; a directory or link made; a message sent to the
kernel) it kills itself with SIGKILL.  n counts up until the command ends by itself, so no boundary is missed
and none has to be named in the product.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from topology import PROGRAMS, Host, Pod, ip

from cni.main import run as hpn
from cni.spec import Request

_STEPS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate", "socket.sendto"}
_CALLS = {"flush", "fsync"}  # steps that Python raises no audit event for
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ENDED = 77

# One address in each family, so that a lost one is missed at once.
_POOL = {
    "type": "hpn-ipam",
    "ranges": [[{"subnet": "10.56.0.0/30"}], [{"subnet": "fd00:56::/126", "rangeEnd": "fd00:56::2"}]],
}


def killed_at(step: int, request: Request) -> bool:
    """Run the request in a child that dies before its n-th step; False if it ended before that."""
    child = os.fork()
    if not child:
        try:
            _die_at(step)
            reply = hpn(request, PROGRAMS)
            os._exit(_ENDED if reply.exit_code == 0 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == _ENDED, "the command itself failed"
    return False


def _die_at(step: int) -> None:
    count = 0

    def one_more() -> None:
        nonlocal count
        if count == step:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in _STEPS or (event == "open" and isinstance(args[2], int) and args[2] & _WRITING):
            one_more()

    def profile(_frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in _CALLS:
            one_more()

    sys.addaudithook(audit)
    threading.setprofile(profile)
    sys.setprofile(profile)


def by_del(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    host.ok("DEL", pod, conf)


def by_del_without_netns(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    pod.remade()
    host.ok("DEL", pod, conf, CNI_NETNS="")


def by_a_new_add(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """The same key again; where DEL had not begun, ours still stands and must be refused, not doubled."""
    reply = host.call("ADD", pod, conf)
    if reply.exit_code:
        assert '"code":100' in reply.stdout, reply.stdout
        host.ok("DEL", pod, conf)
        host.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.56.0.2/30", "fd00:56::2/126"}
    host.ok("DEL", pod, conf)


def by_an_add_elsewhere(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """The path leads to another namespace now, and the same key attaches there (cnitool)."""
    pod.remade()
    host.ok("ADD", pod, conf)
    assert pod.addresses() == {"10.56.0.2/30", "fd00:56::2/126"}
    host.ok("DEL", pod, conf)


def by_gc(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    host.ok("GC", None, conf | {"cni.dev/valid-attachments": []})


def by_del_beside_a_stranger(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """Something else takes the name as soon as it is free."""
    if not pod.link():
        pod.ip("link", "add", "hpn0", "type", "veth", "peer", "name", "hpn0peer")
        host.ok("DEL", pod, conf)
        assert pod.links() == {"hpn0", "hpn0peer"}
        pod.ip("link", "delete", "hpn0")
    else:
        host.ok("DEL", pod, conf)


RECOVERIES = [by_del, by_del_without_netns, by_a_new_add, by_an_add_elsewhere, by_gc, by_del_beside_a_stranger]


@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("command", ["ADD", "DEL", "GC"])
def test_killed_at_every_step(
    host: Host, pod: Pod, command: str, recover: Callable[[Host, Pod, dict[str, Any]], None]
) -> None:
    conf = host.conf(ipam=_POOL, routes=...)
    strangers = {i["ifname"] for i in ip("link")}
    step = 0
    while True:
        if command != "ADD":
            host.ok("ADD", pod, conf)
        with_list = {"cni.dev/valid-attachments": []} if command == "GC" else {}
        killed = killed_at(step, host.request(command, pod, conf | with_list))
        recover(host, pod, conf)
        assert pod.links() == set(), f"link left after step {step}"
        assert host.state_files() == set(), f"files left after step {step}"
        if not killed:
            break
        step += 1
    # Both addresses of the pool are there again, and nothing of the host's was touched.
    host.ok("ADD", pod, conf)
    host.ok("DEL", pod, conf)
    assert {i["ifname"] for i in ip("link")} == strangers
    # Fewer would mean that the steps are not seen any more.
    assert step > 10
