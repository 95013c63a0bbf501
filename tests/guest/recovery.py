"""A plugin that is killed between its steps, and what undoes what it left.

Every fifth step, for a step takes seconds where the machine is emulated; the netns tier takes every one.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from guest.machine import Guest
from killing import killed_at
from topology import Pod

STRIDE = 5


def by_del(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    node.ok("DEL", pod, conf)


def by_del_after_the_namespace(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    pod.remade()
    node.ok("DEL", pod, conf, CNI_NETNS="")


def by_gc(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    node.ok("GC", None, conf | {"cni.dev/valid-attachments": []})


RECOVERIES = (by_del, by_del_after_the_namespace, by_gc)


def recovered(node: Guest, pod: Pod, command: str, conf: dict[str, Any]) -> Iterator[str]:
    """Kill an ADD or DEL at one step after the other, until it ends before.  Yields where it was killed, in words, each
    time that one of RECOVERIES has left nothing in the pod and no file."""
    for n in itertools.count():
        step = n * STRIDE
        if command == "DEL":
            node.ok("ADD", pod, conf)
        killed = killed_at(step, node.request(command, pod, conf))
        RECOVERIES[n % len(RECOVERIES)](node, pod, conf)
        assert pod.links() == set(), f"in the pod after step {step}"
        assert node.state_files() == set(), f"files left after step {step}"
        yield f"after step {step}"
        if not killed:
            assert n >= len(RECOVERIES), f"it has ended before step {step}"
            return
