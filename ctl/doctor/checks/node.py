"""Configurations: the networks', and hpn node's."""

import os
from collections.abc import Iterator
from typing import Final

from ctl.doctor.model import Facts, Finding, Nic, Severity
from hardware.model import Kind
from node.model import PfRule
from node.offer.offers import agrees

# Where Debian's packages have the program; another one may run from elsewhere.
_PACKAGED: Final = "/usr/bin/containerd"


def configuration_refused(facts: Facts) -> Iterator[Finding]:
    """A network that no pod can be attached to."""
    for network in facts.networks:
        if network.refused:
            yield Finding(Severity.ERROR, f"{network.source}: {network.refused}", "what that says, in this file")


def runtime_too_old(facts: Facts) -> Iterator[Finding]:
    """The runtime does not know the cniVersion of its own network, and says so when ADD has succeeded."""
    machine = facts.machine
    if not any(process.words[0] == _PACKAGED for process in machine.processes):
        return
    for network in facts.networks:
        asked = network.conf.get("cniVersion")
        for package, version in machine.packages.items():
            # From 1.1.0 on it takes containerd 2.  Debian's versions may have an epoch in front.
            if network.is_the_runtimes and asked == "1.1.0" and version.rpartition(":")[2].startswith(("0.", "1.")):
                yield Finding(
                    Severity.ERROR,
                    f"{network.source}: cniVersion is {asked}; {machine.packages_path}: {package} is {version}, which "
                    "takes 1.0.0 at most",
                    '"cniVersion": "1.0.0", and for newer runtimes "cniVersions": ["1.0.0", "1.1.0"] beside it',
                )


def node_file_refused(facts: Facts) -> Iterator[Finding]:
    """hpn node does not start with this file, or leaves out a resource of it."""
    file = facts.node_file
    if not file:
        return
    remedy = f"mend it, then: hpn node --check {file.path}"
    if file.refused:
        yield Finding(Severity.ERROR, file.refused, remedy)
    for line in file.settings.left_out if file.settings else ():
        yield Finding(Severity.WARNING, f"{file.path}: left out: {line}", remedy)


def file_renamed(facts: Facts) -> Iterator[Finding]:
    """A file has the name that it had in an older version, and is read under it only where it is alone."""
    for one in facts.renamed:
        if one.is_alone:
            evidence = f"{one.old} is the name that {one.new} had in older versions, and is read still"
            remedy = f"mv {one.old} {one.new}, once the node goes back to no older version: it would not read that"
            yield Finding(Severity.NOTE, evidence, remedy)
        else:
            evidence = f"{one.old} is there, and {one.new}, which is its name now"
            remedy = f"see that {one.new} has all of it, then: rm {one.old}"
            yield Finding(Severity.WARNING, evidence, remedy)


def node_not_running(facts: Facts) -> Iterator[Finding]:
    """kubelet is here, and nobody offers it what the file says."""
    file, programs = facts.node_file, facts.programs
    served = any(one.listens and os.path.basename(one.path).startswith("hpn-") for one in programs.sockets)
    if file and file.is_ours and file.settings and programs.registry and not served:
        evidence = f"{file.path} is there, and nobody listens at {programs.registry}/hpn-*.sock"
        yield Finding(Severity.ERROR, evidence, "systemctl enable --now hpn-node.service, or apply the DaemonSet")


def node_not_as_asked(facts: Facts) -> Iterator[Finding]:
    """A PF does not have what ``pfs`` of the device file asks for."""
    file = facts.node_file
    if not file or not file.settings:
        return
    pfs = [nic for nic in facts.hardware.nics if nic.device.kind is Kind.PF]
    for rule in file.settings.pfs:
        for evidence in (line for nic in pfs if agrees(rule.selector, nic.device) for line in _differences(nic, rule)):
            yield Finding(
                Severity.WARNING,
                f"{evidence}, says {file.path} in {rule.source}",
                "hpn node --dry-run says what keeps it; then: systemctl reload hpn-node",
            )


def _differences(nic: Nic, rule: PfRule) -> Iterator[str]:
    if rule.num_vfs is not None and rule.num_vfs != nic.device.vfs:
        yield f"{nic.path}/sriov_numvfs: {nic.device.vfs}, asked for is numVfs {rule.num_vfs}"
    if rule.mtu is not None and nic.mtu not in (0, rule.mtu):
        yield f"{nic.path}/net/{nic.device.netdevs[0]}/mtu: {nic.mtu}, asked for is mtu {rule.mtu}"
