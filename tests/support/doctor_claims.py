"""The cases of doctor_cases.py about prepared claims; CASES has all."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from support.doctor_blocks import CASES
from support.doctor_cases import ERROR, NOTE, REGISTRY, WARNING, case, offering
from support.doctor_node import ALIVE, NODE, VF, Node
from unit.base.state import test_claims

from base.state import durable
from base.state.claims import Claim
from ctl.doctor.model import Severity

__all__ = ["CASES"]
CLAIM = replace(test_claims.CLAIM, devices=(replace(test_claims.VF, id=VF, attach="multus"),))


def prepare(node: Node, claim: Claim = CLAIM, age: float = 700) -> Path:
    """Write the claim as hpn node did that many seconds ago."""
    file = node.at(f"run/hpn/claims/{claim.uid}.json")
    durable.write(file, claim.to_json())
    os.utime(file, (time.time() - age,) * 2)
    return file


@case
def claim_unreadable(node: Node) -> Iterator[Severity]:
    file = prepare(node, age=0)
    file.write_text("{")
    yield ERROR
    file.unlink()  # as Unprepare does


@case
def claim_unserved(node: Node) -> Iterator[Severity]:
    socket, file = node.at(f"{REGISTRY}/hpn-hpn-cni.io.sock"), node.at("etc/hpn/devices.yaml")
    file.unlink()
    # The pod's interface has gone, and it waits for hpn node.
    chain = replace(CLAIM, devices=(replace(CLAIM.devices[0], attach="chain"),))
    prepare(node, chain)
    yield ERROR
    with offering(socket, "hpn-cni.io"):
        assert [one for one, _ in node.findings()] == ["claim-waits"]
    # kubelet gives it up.
    prepare(node, replace(chain, ended=True))
    socket.parent.rmdir()
    file.write_text(NODE)


@case
def claim_waits(node: Node) -> Iterator[Severity]:
    prepare(node)
    yield WARNING
    node.save(ALIVE, claim=f"{CLAIM.uid}/0")


@case
def claim_gone(node: Node) -> Iterator[Severity]:
    node.at("var/lib/kubelet/pods/another").mkdir()
    prepare(node)
    yield WARNING
    node.at(f"var/lib/kubelet/pods/{CLAIM.pods[0]}").mkdir()
    node.save(ALIVE, claim=f"{CLAIM.uid}/0")


@case
def claim_stale(node: Node) -> Iterator[Severity]:
    node.at("proc/sys/kernel/random/boot_id").write_text("another\n")
    node.at("proc/stat").write_text(f"cpu  1 2\nbtime {time.time() - 300:.0f}\n")
    file = prepare(node)
    yield NOTE
    file.unlink()


@case
def boot_id_differs(node: Node) -> Iterator[Severity]:
    """LXC gives a container a boot id of its own, and a pod in it reads the kernel's."""
    node.at("proc/sys/kernel/random/boot_id").write_text("another\n")
    node.at("proc/stat").write_text(f"cpu  1 2\nbtime {time.time() - 3000:.0f}\n")
    prepare(node)
    node.save(ALIVE, claim=f"{CLAIM.uid}/0")
    yield ERROR
    # hpn node runs on the host, and prepares the claim again.
    prepare(node, replace(CLAIM, boot="another"))
