"""Checks of claims: their slices at the API server, and the prepared ones on the node."""

from collections.abc import Iterator
from typing import Final

from base.state.gates import DRIVER
from base.table import abridged
from ctl.doctor.model import Facts, Finding, Severity

_NAMED: Final = 3  # claims in one finding
_LONG: Final = 600.0  # seconds; no ADD takes this long, and kubelet tries again every minute
_MULTUS: Final = (
    "kubectl describe pod shows why; check its annotation k8s.v1.cni.cncf.io/networks, and the resourceName of the "
    "network that it names"
)
_CHAIN: Final = "kubectl describe pod shows why ADD failed"
_NO_CHAIN: Final = 'end the cluster\'s own conflist with {"type": "hpn", "claims": true}'


def slices_missing(facts: Facts) -> Iterator[Finding]:
    """The scheduler knows no device of this node, so it binds no new pod with a claim to the node."""
    if not facts.slices or not facts.node_file:
        return
    wants = f"{facts.node_file.path} offers resources by: dra"
    if facts.slices.silent:
        evidence = f"{wants}, and this node's ResourceSlices cannot be read: {facts.slices.silent}"
        yield Finding(Severity.ERROR, evidence, "follow this message; hpn node then publishes them by itself")
    elif not facts.slices.number:
        evidence = f"{wants}, and the API server has no ResourceSlice of hpn-cni.io for this node"
        remedy = "journalctl -u hpn-node shows why; devices that pods have from a device plugin are left out"
        yield Finding(Severity.WARNING, evidence, remedy)


def slices_foreign(facts: Facts) -> Iterator[Finding]:
    """Another program writes slices of hpn's driver for this node.  No pod gets a device of theirs."""
    if not facts.slices or not facts.node_file:
        return
    for one in facts.slices.strangers:
        evidence = f"{facts.node_file.path} offers resources by: dra, and hpn node did not make the ResourceSlice {one}"
        remedy = f"end that program, then: kubectl delete resourceslice {one.split()[0]}"
        yield Finding(Severity.ERROR, evidence, remedy)


def claim_unreadable(facts: Facts) -> Iterator[Finding]:
    """A damaged claim: ADD does not find it, so the pod's interface lacks what the claim asks for, or fails."""
    for file in facts.state.damaged_claims:
        evidence = f"{file} is not an intact prepared claim"
        yield Finding(Severity.ERROR, evidence, "delete the pod of the claim with this UID; kubelet then gives it up")


def claim_unserved(facts: Facts) -> Iterator[Finding]:
    """No driver serves kubelet, so the pods of prepared claims stay in Terminating, without an event."""
    if titles := _unserved(facts):
        evidence = f"{facts.programs.registry} has no socket of {DRIVER}, and claims are prepared: "
        remedy = "install hpn again, or start hpn-node.service; remove it only after the pods with claims have ended"
        yield Finding(Severity.ERROR, evidence + abridged(titles, _NAMED), remedy)


def _unserved(facts: Facts) -> list[str]:
    """The claims that kubelet cannot give up, because it runs here without the driver."""
    programs = facts.programs
    is_served = any(one.listens and one.resource == DRIVER for one in programs.sockets)
    held = [one.title for one in facts.state.claims if not (one.is_stale or one.is_given_up)]
    return [] if is_served or not programs.registry else held


def claim_waits(facts: Facts) -> Iterator[Finding]:
    """A pod's containers wait for an interface that nothing attaches."""
    if _unserved(facts):  # their pods may have ended
        return
    has_chain = any(one.conf.get("claims") is True for one in facts.networks)
    for one in facts.state.claims:
        ways = {way for _, way in one.waiting}
        devices, title = ", ".join(device for device, _ in one.waiting), f"{one.file}: {one.title}"
        if not ways or one.is_gone or one.is_stale:
            continue
        if "chain" in ways and not has_chain:
            evidence = f"{title}: hpn has to attach {devices}, and no network in /etc/cni/net.d has claims"
            yield Finding(Severity.ERROR, evidence, _NO_CHAIN)
        elif one.age > _LONG:
            evidence = f"{title}: {devices} not attached {one.age / 60:.0f} minutes after Prepare"
            yield Finding(Severity.WARNING, evidence, _CHAIN if "chain" in ways else _MULTUS)


def claim_gone(facts: Facts) -> Iterator[Finding]:
    """kubelet has not given a claim up, so no other claim gets its devices."""
    for one in facts.state.claims:
        if one.is_gone and one.age > _LONG and not one.is_stale:
            yield Finding(
                Severity.WARNING,
                f"{one.file}: {one.title}: its pods are gone, and kubelet has not given it up",
                "kubelet's log names the claim if it tries; if kubelet has lost its state: "
                f"rm -r {one.file} {one.file.removesuffix('.json')}.d",
            )


def claim_stale(facts: Facts) -> Iterator[Finding]:
    """An earlier boot prepared a claim, and /run is on a disk.  It counts as none, and hpn node removes it."""
    for one in facts.state.claims:
        if one.is_stale and not one.boot:
            evidence = f"{one.file}: {one.title}: an earlier boot prepared it"
            remedy = f"none: hpn node removes it at its start; on a node without one: rm {one.file}"
            yield Finding(Severity.NOTE, evidence, remedy)


def boot_id_differs(facts: Facts) -> Iterator[Finding]:
    """hpn node reads another boot id than CNI commands, so ADD finds no claim, and no container of its pod starts."""
    for one in facts.state.claims:
        if one.boot:
            yield Finding(
                Severity.ERROR,
                f"{one.file}: {one.title}: hpn node prepared it in boot {one.boot}, and this boot, which began before, "
                "has another id here: a container shows its own",
                "run hpn node on the node, or show its container the node's /proc/sys/kernel/random/boot_id",
            )
