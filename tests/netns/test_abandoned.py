"""A command whose caller was killed while it waited begins nothing: another may have been sent, and answered, since."""

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
    """The request, of whose caller it is asked so often before it is gone; and how often that was asked."""
    asked = 0

    def is_gone() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    request = replace(host.request(command, pod, conf), abandoned=is_gone)
    return hpn(request, PROGRAMS), asked


@pytest.mark.parametrize(("command", "looks"), [("ADD", 2), ("DEL", 1), ("GC", 3)])
def test_nothing_is_begun(host: Host, make_pod: Callable[[], Pod], command: str, looks: int) -> None:
    """Of ADD's looks the last is its IPAM's, with the store's lock; GC's are before its IPAM is asked, by the
    IPAM once it has read the leases, and with the attachment's lock."""
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
    """It cannot ask, as ours does, whether anybody waits for its GC."""
    seen = host.tmp_path / "seen"
    path = host.program("script", f"cat >/dev/null; echo $CNI_COMMAND >> {seen}")
    request = host.request("GC", None, host.conf(ipam={"type": "script"}, **NOTHING), CNI_PATH=path, CNI_IFNAME="")
    reply = hpn(replace(request, abandoned=lambda: True), PROGRAMS)
    assert json.loads(reply.stdout)["code"] == 11
    assert not seen.exists()
