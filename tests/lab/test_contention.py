"""More pods than VFs: one of two competing pods gets a VF, and dead pods lose theirs to living ones."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from guest.node import PF, Node, vf
from guest.processes import at_once
from support.topology import Pod

from cni.kinds import sriov

BUSY, NOT_THERE, OWNED = 11, 101, 109


def test_two_pods_want_one_vf(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Each time one pod gets the VF and the other gets an error, whichever keys name the VF."""
    pods = [make_pod(), make_pod()]
    asked = (node.conf(vlan=7), node.conf(vlan=8)), (node.conf(), node.conf(deviceID=..., pf=PF, vf=0))
    won = set[int]()
    for n in range(20):
        confs = asked[n % 2]
        order = list(zip(pods, confs, strict=True))[:: 1 if n % 4 < 2 else -1]
        replies = at_once([node.request("ADD", pod, conf) for pod, conf in order])
        assert sorted(reply.exit_code for reply in replies) == [0, 1], replies
        (refused,) = (json.loads(reply.stdout) for reply in replies if reply.exit_code)
        assert refused["code"] in (OWNED, BUSY)
        (winner,) = (pod for pod, _ in order if pod.links())
        won.add(pods.index(winner))
        result = next(json.loads(reply.stdout) for reply in replies if not reply.exit_code)
        conf = confs[pods.index(winner)]
        assert node.checked(winner, conf, result).exit_code == 0
        assert len(node.leases()) == 2
        for pod in pods:
            node.ok("DEL", pod, conf)
        assert (vf()["vlan_list"], node.state_files()) == ([{}], set())
    assert won == {0, 1}


@pytest.fixture
def crowd(node: Node, make_pod: Callable[[], Pod]) -> Callable[[int], list[Pod]]:
    """That many pods with any VF of the PF."""

    def attached(count: int) -> list[Pod]:
        pods = [make_pod() for _ in range(count)]
        for pod in pods:
            node.ok("ADD", pod, any_vf(node, vlan=7))
        return pods

    return attached


def any_vf(node: Node, **keys: Any) -> dict[str, Any]:
    return node.conf(deviceID=..., pf=PF, **keys)


def devices(pods: list[Pod]) -> list[str]:
    return [link["parentdev"] for pod in pods if (link := pod.link())]


def test_two_pods_want_the_last_vf(node: Node, make_pod: Callable[[], Pod], crowd: Callable[[int], list[Pod]]) -> None:
    others, pods = crowd(3), [make_pod(), make_pod()]
    for _ in range(5):
        replies = at_once([node.request("ADD", pod, any_vf(node)) for pod in pods])
        assert sorted(reply.exit_code for reply in replies) == [0, 1], replies
        (refused,) = (json.loads(reply.stdout) for reply in replies if reply.exit_code)
        assert (refused["code"], "no free VF" in refused["msg"]) == (NOT_THERE, True)
        assert len(set(devices(pods + others))) == 4
        for pod in pods:
            node.ok("DEL", pod)
    for pod in others:
        node.ok("DEL", pod)
    assert node.state_files() == set()


def test_dead_pods_give_way(node: Node, make_pod: Callable[[], Pod], crowd: Callable[[int], list[Pod]]) -> None:
    """All VFs are attached, and two of the pods died without a DEL: two new pods get a VF, a third does not."""
    *dying, one, other = crowd(4)
    conf = any_vf(node)
    error = node.refused("ADD", make_pod(), conf)
    assert (error["code"], "no free VF" in error["msg"]) == (NOT_THERE, True)
    assert node.refused("STATUS", None, conf)["code"] == 50
    for pod in dying:
        pod.gone()
    node.ok("STATUS", None, conf)
    new = [make_pod(), make_pod()]
    replies = at_once([node.request("ADD", pod, conf) for pod in new])
    assert [reply.exit_code for reply in replies] == [0, 0], replies
    assert len(set(devices([*new, one, other]))) == 4
    numbers = {d: n for n, d in enumerate(sriov._vfs_of(PF))}
    assert [vf(numbers[device])["vlan_list"] for device in devices(new)] == [[{}], [{}]]
    assert node.refused("ADD", make_pod(), conf)["code"] == NOT_THERE
    for pod in (*dying, *new, one, other):
        node.ok("DEL", pod, conf)
    assert node.state_files() == set()
