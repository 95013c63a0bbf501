"""Ways to undo what a killed command left of an attachment."""

from collections.abc import Callable
from typing import Any, TypeAlias

from support.topology import Host, Pod

Recovery: TypeAlias = Callable[[Host, Pod, dict[str, Any]], None]


def by_del(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    host.ok("DEL", pod, conf)


def by_gc(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    host.ok("GC", None, conf | {"cni.dev/valid-attachments": []})


def by_a_new_add(host: Host, pod: Pod, conf: dict[str, Any]) -> None:
    """ADD of the same key, which refuses a second attachment while the first one still exists."""
    reply = host.call("ADD", pod, conf)
    if reply.exit_code:
        assert '"code":100' in reply.stdout, reply.stdout
        host.ok("DEL", pod, conf)
        host.ok("ADD", pod, conf)
    host.ok("DEL", pod, conf)
