"""A plugin that is killed at the boundaries between its steps, and what undoes what it left.

A boundary is followed by one of RECOVERIES.  Whenever a boundary is drawn again another recovery follows on it.
"""

from collections.abc import Iterator
from typing import Any

import drawn
from guest.machine import Guest
from support.killing import killed_at
from support.topology import Pod


def by_del(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    node.ok("DEL", pod, conf)


def by_del_after_the_namespace(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    pod.remade()
    node.ok("DEL", pod, conf, CNI_NETNS="")


def by_gc(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    node.ok("GC", None, conf | {"cni.dev/valid-attachments": []})


def by_a_new_add(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    """ADD of the same key, which refuses to make a second attachment where the first one still stands."""
    reply = node.call("ADD", pod, conf)
    if reply.exit_code:
        assert '"code":100' in reply.stdout, reply.stdout
        node.ok("DEL", pod, conf)
        node.ok("ADD", pod, conf)
    node.ok("DEL", pod, conf)


def by_an_add_elsewhere(node: Guest, pod: Pod, conf: dict[str, Any]) -> None:
    """The path leads to another namespace now; the device comes home from the first one in the kernel's own time."""
    pod.remade()
    node.ok("ADD", pod, conf)
    node.ok("DEL", pod, conf)


RECOVERIES = (by_del, by_del_after_the_namespace, by_gc, by_a_new_add, by_an_add_elsewhere)


def recovered(node: Guest, pod: Pod, command: str, conf: dict[str, Any]) -> Iterator[str]:
    """Kill an ADD, DEL or GC at one boundary after the other, until it ends before.  Yields where it was killed, in
    words, each time that one of RECOVERIES has left nothing in the pod and no file."""
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
    """Rules of policy routing that are not there from the start."""
    return [rule for family in ("-4", "-6") for rule in pod.ip(family, "rule") if rule["src"] != "all"]
