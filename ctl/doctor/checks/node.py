"""Checks of configurations: those of the networks, in files and in the cluster, and the device file of hpn node."""

import os
import re
from collections.abc import Iterator
from typing import Final

from base.table import abridged
from ctl.doctor.model import Facts, Finding, Nic, Severity
from hardware.model import Kind
from node.model import DRAIN, THEN, PfRule
from node.offer.offers import agrees

# The path in Debian's packages.  A containerd of another origin has no package version.
_PACKAGED: Final = "/usr/bin/containerd"
# A Debian version may begin with an epoch.
_NUMBERS: Final = re.compile(r"(?:\d+:)?(\d+)\.(\d+)")
_ALWAYS_CDI: Final = (2, 4)  # which has no enable_cdi any more
_NAMED: Final = 8  # pods in a finding


def resource_nobody_has(facts: Facts) -> Iterator[Finding]:
    """A network names a resource that no node offers.  Its pods stay Pending."""
    cluster = facts.cluster
    if not cluster:
        return
    for one in cluster.definitions:
        for resource in sorted({*one.resources} - cluster.offered):
            yield Finding(
                Severity.ERROR,
                f"NetworkAttachmentDefinition {one.name} names the resource {resource}, which none of the "
                f"{cluster.nodes} nodes offers",
                "offer it (resources in the device file, or in another device plugin's), or correct the annotation "
                "k8s.v1.cni.cncf.io/resourceName, or rails; ignore this if its nodes come only on demand",
            )


def names_unlisted(facts: Facts) -> Iterator[Finding]:
    """Authors of NetworkAttachmentDefinitions may name every device of the node.  That is right if they are its
    administrators."""
    ours = [one.name for one in facts.cluster.definitions if one.is_ours] if facts.cluster else []
    if ours and facts.without_names:
        yield Finding(
            Severity.NOTE,
            f"{facts.without_names} has no allowedNames, so NetworkAttachmentDefinitions for hpn ({len(ours)}, such as "
            f"{ours[0]}) may name every network, master, PF and device",
            "if other people than the node's administrators write them, list the permitted names in allowedNames",
        )


def policy_refused(facts: Facts) -> Iterator[Finding]:
    """The policy file is broken, so every ADD on this node fails, whatever its network."""
    if facts.policy_refused:
        evidence = f"{facts.policy_refused}; until then every ADD on this node fails"
        yield Finding(Severity.ERROR, evidence, "correct this file as the error states; the next ADD reads it")


def configuration_refused(facts: Facts) -> Iterator[Finding]:
    """hpn refuses a network's configuration, so no pod can be attached to it."""
    for network in facts.networks:
        if network.refused:
            yield Finding(
                Severity.ERROR, f"{network.source}: {network.refused}", "correct this file as the error states"
            )


def network_broken(facts: Facts) -> Iterator[Finding]:
    """containerd reads the files in order, and drops every network at a broken one (go-cni, loadFromConfDir)."""
    if facts.broken:
        path, why = facts.broken
        yield Finding(
            Severity.ERROR,
            f"{path}, which sorts first, is broken: {why}; the runtime then has no network",
            f"correct it, or: rm {path}",
        )


def runtime_too_old(facts: Facts) -> Iterator[Finding]:
    """The runtime does not support the cniVersion of its own network, and fails only after ADD has succeeded."""
    for network in facts.networks:
        asked = network.conf.get("cniVersion")
        for package, version in _older(facts):
            if network.is_the_runtimes and asked == "1.1.0":
                yield Finding(
                    Severity.ERROR,
                    f"{network.source}: cniVersion is {asked}; {facts.machine.packages_path}: {package} is {version}, "
                    "which supports 1.0.0 at most",
                    'set "cniVersion": "1.0.0", and for newer runtimes also "cniVersions": ["1.0.0", "1.1.0"]',
                )


def _packages(facts: Facts) -> list[tuple[str, str, tuple[int, int]]]:
    """The packages of a running containerd, their versions, and the first two numbers of each."""
    if not facts.containerd or facts.containerd.program != _PACKAGED:
        return []
    found = ((name, version, _NUMBERS.match(version)) for name, version in facts.machine.packages.items())
    return [(name, version, (int(it[1]), int(it[2]))) for name, version, it in found if it]


def _older(facts: Facts) -> list[tuple[str, str]]:
    """The packages and versions of a running containerd before 2.0."""
    return [(name, version) for name, version, numbers in _packages(facts) if numbers < (2, 0)]


def cdi_disabled(facts: Facts) -> Iterator[Finding]:
    """containerd ignores CDI files, so a container starts without its device nodes and, with a claim, without waiting
    for its interface.  containerd 1.7 enables CDI only if its file does; 2.0 to 2.3 unless its file does not; 2.4
    always."""
    runtime, settings = facts.containerd, facts.node_file and facts.node_file.settings
    resources = settings.resources if settings else ()
    if not runtime or not (facts.state.claims or any(one.by_dra or one.cdi for one in resources)):
        return
    if any(numbers >= _ALWAYS_CDI for *_, numbers in _packages(facts)):
        return
    older, restart = _older(facts), "then: systemctl restart containerd"
    if runtime.replaced_by and older:
        package, version = older[0]
        evidence = (
            f"{runtime.replaced_by} has no enable_cdi in CRI's section, and {package} {version} uses that section in "
            f"place of that of {runtime.cdi_path}"
        )
        remedy = f"set enable_cdi = true in that section of {runtime.replaced_by}, {restart}"
    elif runtime.cdi is False:
        evidence = f"{runtime.cdi_path} has enable_cdi = false"
        remedy = f"set enable_cdi = true there, {restart}"
    elif runtime.cdi is None and older:
        package, version = older[0]
        evidence = f"{runtime.file} has no enable_cdi, and {package} {version} enables CDI only if it is true"
        section = '[plugins."io.containerd.grpc.v1.cri"]'
        remedy = f"with containerd 1.7 or later, set enable_cdi = true in {section} of that file, {restart}"
    else:
        return
    yield Finding(Severity.ERROR, f"{evidence}; resources or claims give devices by CDI", remedy)


def node_file_refused(facts: Facts) -> Iterator[Finding]:
    """hpn node does not start with this file, or leaves out one of its resources."""
    file = facts.node_file
    if not file:
        return
    remedy = f"correct it, then: hpn node --check {file.path}"
    if file.refused:
        yield Finding(Severity.ERROR, file.refused, remedy)
    for line in file.settings.left_out if file.settings else ():
        yield Finding(Severity.WARNING, f"{file.path}: left out: {line}", remedy)


def node_not_running(facts: Facts) -> Iterator[Finding]:
    """kubelet runs here, and no process offers it the devices of the device file."""
    file, programs = facts.node_file, facts.programs
    served = any(one.listens and os.path.basename(one.path).startswith("hpn-") for one in programs.sockets)
    if file and file.is_ours and file.settings and programs.registry and not served:
        evidence = f"{file.path} exists, and no process listens on {programs.registry}/hpn-*.sock"
        yield Finding(Severity.ERROR, evidence, "systemctl enable --now hpn-node.service, or deploy the DaemonSet")


def node_not_as_asked(facts: Facts) -> Iterator[Finding]:
    """A PF differs from ``pfs`` of the device file."""
    file = facts.node_file
    if not file or not file.settings:
        return
    why, remedy = "", "find the reason: hpn node --dry-run; then: systemctl reload hpn-node"
    if file.is_sys_read_only:
        why = ", and hpn node has a read-only /sys"
        remedy = "mount the node's /sys into its container, as the chart does with provision: true"
    pfs = [nic for nic in facts.hardware.nics if nic.device.kind is Kind.PF]
    for rule in file.settings.pfs:
        for nic in [one for one in pfs if agrees(rule.selector, one.device)]:
            pods = [] if rule.num_vfs in (None, nic.device.vfs) else _pods(facts, nic)
            held = f"; pods have VFs: {abridged(pods, _NAMED)}" if pods else ""
            for evidence in _differences(nic, rule):
                yield Finding(
                    Severity.WARNING,
                    f"{evidence} ({file.path}, {rule.source}){why}{held}",
                    f"run: {DRAIN}, {THEN}" if pods and not why else remedy,
                )


def _pods(facts: Facts, pf: Nic) -> list[str]:
    """The attachments of living pods that have VFs of a PF."""
    vfs = {nic.device.id for nic in facts.hardware.nics if nic.device.pf == pf.device.id}
    return [one.title for one in facts.state.attachments if one.alive and one.device in vfs]


def _differences(nic: Nic, rule: PfRule) -> Iterator[str]:
    if rule.num_vfs is not None and rule.num_vfs != nic.device.vfs:
        yield f"{nic.path}/sriov_numvfs: {nic.device.vfs}; the device file asks for numVfs {rule.num_vfs}"
    if rule.mtu is not None and nic.mtu not in (0, rule.mtu):
        yield f"{nic.path}/net/{nic.device.netdevs[0]}/mtu: {nic.mtu}; the device file asks for mtu {rule.mtu}"
