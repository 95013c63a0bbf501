"""Helpers for the tests of CHECK: an attachment, an outside change, and CHECK's answer."""

from collections.abc import Callable
from typing import Any

from support.topology import Host, Pod

Change = Callable[[Host, Pod, dict[str, Any]], None]
ROUTES = ({"dst": "10.60.0.0/16"}, {"dst": "fd00:60::/48"})


def routed(host: Host, *routes: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """A configuration with these routes in the IPAM section."""
    conf = host.conf(**keys)
    conf["ipam"]["routes"] = list(routes or ROUTES)
    return conf


def in_pod(*commands: str) -> Change:
    """A change that runs ``ip`` with these lines in the pod."""

    def change(_host: Host, pod: Pod, _result: dict[str, Any]) -> None:
        for command in commands:
            pod.ip(*command.split())

    return change


def caught(host: Host, pod: Pod, conf: dict[str, Any], change: Change, *says: str) -> None:
    """Assert that CHECK passes before the change and fails with these words after it.  CHECK changes nothing itself,
    and stores its error beside the record."""
    result = host.ok("ADD", pod, conf)
    reply = host.checked(pod, conf, result)
    assert (reply.exit_code, reply.stdout) == (0, ""), reply.stdout
    change(host, pod, result)
    before = host.picture(pod)[pod.name], host.state_files()
    error = host.refused("CHECK", pod, conf | {"prevResult": result})
    assert error["code"] == 107, error
    for words in says:
        assert words in error["msg"]
    kept = {file for file in host.state_files() if file.endswith(".error")}
    record = f"attachments/{conf['name']}/{pod.name}:hpn0"
    assert kept == ({f"{record}.error"} if f"{record}.json" in before[1] else set())
    assert (host.picture(pod)[pod.name], host.state_files() - kept) == before


def passes(host: Host, pod: Pod, conf: dict[str, Any], change: Change) -> None:
    """Assert that CHECK passes after the change, too."""
    result = host.ok("ADD", pod, conf)
    change(host, pod, result)
    reply = host.checked(pod, conf, result)
    assert (reply.exit_code, reply.stdout) == (0, ""), reply.stdout
