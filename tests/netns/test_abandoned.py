"""A command begins nothing after its caller was killed: the runtime may have sent another one since, and have its
answer."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.topology import PROGRAMS, Host, Pod

from base.protocol.spec import Reply
from cni.main import run as hpn

NOTHING = {"cni.dev/valid-attachments": []}


def abandoned(after: int, host: Host, command: str, pod: Pod, conf: dict[str, Any]) -> tuple[Reply, int]:
    """Run a request with a caller that disappears after this many checks; return the reply and the number of checks."""
    asked = 0

    def is_gone() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    request = replace(host.request(command, pod, conf), abandoned=is_gone)
    return hpn(request, PROGRAMS), asked


@pytest.mark.parametrize(("command", "looks"), [("ADD", 2), ("DEL", 1), ("GC", 3)])
def test_nothing_is_begun(host: Host, make_pod: Callable[[], Pod], command: str, looks: int) -> None:
    """ADD checks for its caller last in the IPAM, with the store's lock.  GC checks before the call of its IPAM, in the
    IPAM after the read of the leases, and with the attachment's lock."""
    pod, conf = make_pod(), host.conf(**NOTHING) if command == "GC" else host.conf()
    host.ok("ADD", make_pod())
    host.ok("DEL", pod)
    if command != "ADD":
        host.ok("ADD", pod)
    before = host.picture(pod)
    for after in range(looks):
        reply, asked = abandoned(after, host, command, pod, conf)
        error = json.loads(reply.stdout)
        assert (error["code"], "no longer waits" in error["msg"]) == (11, True)
        assert asked > after
        if command != "GC" or not after:
            assert host.picture(pod) == before
        assert pod.links() == (set() if command == "ADD" else {"hpn0"})
    reply, _ = abandoned(9, host, command, pod, conf)
    assert reply.exit_code == 0


def test_another_ipam_is_not_asked(host: Host, pod: Pod) -> None:
    """GC does not call another IPAM, because that one cannot check for the caller itself, as hpn-ipam does."""
    seen = host.tmp_path / "seen"
    path = host.program("script", f"cat >/dev/null; echo $CNI_COMMAND >> {seen}")
    request = host.request("GC", None, host.conf(ipam={"type": "script"}, **NOTHING), CNI_PATH=path, CNI_IFNAME="")
    reply = hpn(replace(request, abandoned=lambda: True), PROGRAMS)
    assert json.loads(reply.stdout)["code"] == 11
    assert not seen.exists()
