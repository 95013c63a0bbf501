"""Kill a plugin at the boundaries between its steps, and undo its changes in one of several ways.

One of RECOVERIES follows each boundary.  A boundary that is drawn again gets another recovery.
"""

from collections.abc import Iterator
from typing import Any

import drawn
from guest.machine import Guest
from support.killing import killed_at
from support.recovery import by_a_new_add, by_del, by_gc
from support.topology import Pod


def by_del_after_the_namespace(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    pod.remade()
    node.ok("DEL", pod, conf, CNI_NETNS="")


def by_an_add_elsewhere(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    """ADD with a path to another namespace; the device comes home from the first one when the kernel removes that."""
    pod.remade()
    node.ok("ADD", pod, conf)
    node.ok("DEL", pod, conf)


RECOVERIES = (by_del, by_del_after_the_namespace, by_gc, by_a_new_add, by_an_add_elsewhere)


def recovered(node: Guest, pod: Pod, command: str, conf: dict[str, Any]) -> Iterator[str]:
    """Kill an ADD, DEL or GC at one boundary after the other, until it ends before the next one.

    Yields the boundary, in words, each time that one of RECOVERIES has left nothing in the pod and no file.
    """
    with_list = {"cni.dev/valid-attachments": []} if command == "GC" else {}
    for boundary in drawn.steps():
        if command != "ADD":
            node.ok("ADD", pod, conf)
        killed = killed_at(boundary, node.request(command, pod, conf | with_list))
        recover = RECOVERIES[(boundary + drawn.turn()) % len(RECOVERIES)]
        where = f"at boundary {boundary} of {command}, {recover.__name__}"
        try:
            recover(node, pod, conf)
        except AssertionError as e:
            e.add_note(where)
            raise
        assert (pod.links(), _rules(pod)) == (set(), []), f"in the pod {where}"
        assert node.state_files() == set(), f"files left {where}"
        yield where
        if not killed:
            assert boundary > 10, f"it has ended before boundary {boundary}"
            return


def _rules(pod: Pod) -> list[dict[str, Any]]:
    """The policy routing rules, except those that exist from the start."""
    return [rule for family in ("-4", "-6") for rule in pod.ip(family, "rule") if rule["src"] != "all"]
