"""irqAffinity and rps of a VF: real vectors, restored after DEL."""

import os
from pathlib import Path

import pytest
from guest.node import Node
from guest.recovery import recovered
from support.topology import Pod, ip


def affinities(device: str) -> dict[str, str]:
    """For each interrupt of the function, in order, the processors that may handle it."""
    numbers = sorted(int(path.name) for path in Path(f"/sys/bus/pci/devices/{device}/msi_irqs").iterdir())
    return {f"{number}": Path(f"/proc/irq/{number}/smp_affinity_list").read_text().strip() for number in numbers}


def steering(device: str) -> list[str]:
    queues = Path(f"/sys/bus/pci/devices/{device}/net").glob("*/queues/rx-*/rps_cpus")
    return [path.read_text().strip() for path in queues]


CONF = {"irqAffinity": "1,0", "rps": "1"}


@pytest.fixture(autouse=True)
def used(node: Node) -> None:
    """Set the VF up once: before that the kernel does not show its interrupts."""
    (netdev,) = os.listdir(f"/sys/bus/pci/devices/{node.device}/net")
    for state in ("up", "down"):
        ip("link", "set", netdev, state)


def test_interrupts_one_after_the_other(node: Node, pod: Pod) -> None:
    before = affinities(node.device)
    assert len(before) > 1
    at_home = steering(node.device)
    conf = node.conf(**CONF)
    result = node.ok("ADD", pod, conf)
    assert list(affinities(node.device).values()) == [("0", "1")[n % 2] for n in range(len(before))]
    assert pod.run("cat", "/sys/class/net/hpn0/queues/rx-0/rps_cpus").stdout.strip() == "2"
    assert node.checked(pod, conf, result).exit_code == 0
    last = list(before)[-1]
    Path(f"/proc/irq/{last}/smp_affinity_list").write_text("0-1")
    reply = node.checked(pod, conf, result)
    assert f"the affinity of interrupt {last} of hpn0 is 0-1, ADD left " in reply.stdout
    Path(f"/proc/irq/{last}/smp_affinity_list").write_text(("0", "1")[(len(before) - 1) % 2])
    node.ok("DEL", pod, conf)
    assert affinities(node.device) == before
    assert steering(node.device) == at_home


def test_those_near_the_device(node: Node, pod: Pod) -> None:
    before = affinities(node.device)
    node.ok("ADD", pod, node.conf(irqAffinity="numa", rps="numa"))
    assert {"0", "1"} >= set(affinities(node.device).values()) != set(before.values())
    node.ok("DEL", pod, node.conf())
    assert affinities(node.device) == before


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_between_steps(node: Node, pod: Pod, command: str) -> None:
    before = affinities(node.device), steering(node.device)
    for where in recovered(node, pod, command, node.conf(**CONF)):
        assert (affinities(node.device), steering(node.device)) == before, f"not as it was {where}"
