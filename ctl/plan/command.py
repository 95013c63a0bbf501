"""hpn plan: a device file, networks, a label, classes and Helm values for this node's NICs; and how the device file
differs."""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from base.kernel import sysfs
from base.protocol import written
from base.protocol.errors import InvalidConfig, IoFailure, LinkUnavailable
from base.table import printable
from ctl.command_line import parser_for
from ctl.doctor.checks.pools import range_on_each_node
from ctl.doctor.cluster import cluster
from ctl.doctor.model import Facts
from ctl.doctor.reading import Reader
from ctl.plan.choice import Nic, Plan, decide, nics
from ctl.plan.documents import DEVICES, DRA, VALUES, documents
from hardware.model import Device, Kind
from node import config
from node.model import Resource, Settings, Sharing
from node.offer.offers import agrees

_WAYS = {Sharing.EXCLUSIVE: "for one pod each", Sharing.SHARED: "for many pods"}


def answer(words: Sequence[str], root: Path = sysfs.SYS) -> tuple[str, int]:
    """The command's output and exit status.  Raises CniError, OSError, and SystemExit for wrong options."""
    options = _options(words)
    sysfs.refuse_hidden(root)
    found = nics(root, options.device)
    plan = decide(found, options.how or "", options.vfs)
    if not plan.rails:
        reasons = [f"{nic.title}: {plan.left_out[nic.device.id]}" for nic in found]
        why = "; ".join(["pods can have no NIC of this node", *reasons])
        raise LinkUnavailable(f"{why}; name an interface that pods can share, as in: hpn plan eth1")
    try:
        files = documents(plan, found, options.prefix, options.subnet, options.by, is_each=options.each)
        planned = config.settings(files[DEVICES].encode(), is_yaml=True)
        if options.check:
            file = options.config or next((path for path in config.DEFAULTS if path.exists()), config.OURS)
            present = config.read(file, prefix=options.prefix)
            found_here = [*_differences(plan, found, planned, present, is_whole=not options.device)]
            if options.by:
                found_here += _ways(present, options.by)
            of_file = [f"{file}: {one}" for one in found_here]
            lines = [printable(one) for one in [*of_file, *_of_networks(options.kubeconfig)]]
            return "\n".join(lines or [f"{file} offers what hpn plan chooses"]) + "\n", int(bool(lines))
    except config.BadFile as e:
        raise InvalidConfig(e.msg) from e
    if options.output:
        return _written(options.output, files), 0
    values = files.pop(VALUES)
    return values if options.helm else "---\n".join(files.values()), 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    about = "Write a device file, networks and a label's meaning for this node's NICs, each choice with its reason."
    fails = "pods can have no NIC, or with --check if the files differ"
    parser = parser_for("plan", about, "example: hpn plan --as vf --output plan", fails=fails)
    parser.add_argument(
        "device", nargs="*", help="an interface, PCI address or RDMA device; default: all PFs and bonds"
    )
    ways = "VFs, scalable functions, whole PFs, or macvlan and IPoIB; default: as the NIC can"
    parser.add_argument("--as", dest="how", choices=("vf", "sf", "pf", "master"), help=ways)
    parser.add_argument("--each", action="store_true", help="a network for each rail, for pods with some of them")
    by = "offer the devices by Dynamic Resource Allocation, with DeviceClasses; default: by the device plugin"
    parser.add_argument("--by", choices=("devicePlugin", DRA), default="", help=by)
    parser.add_argument("--vfs", type=written.number, default=0, help="VFs of each PF; default: those it has, or 8")
    parser.add_argument("--prefix", default="example.com", help="of the resources' names; default: example.com")
    parser.add_argument("--subnet", default="10.56.0.0/16", help="the first rail's; the others' follow it")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--output", type=Path, metavar="DIR", help="write a file for each part; replace none")
    either.add_argument("--helm", action="store_true", help="print all of it as values for packaging/helm/hpn")
    either.add_argument("--check", action="store_true", help="report how the node's device file differs")
    parser.add_argument("--config", type=Path, metavar="FILE", help="with --check: the device file")
    whom = "with --check: also report definitions whose addresses each node allocates, read with this credential"
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help=whom)
    options = parser.parse_args(words)
    if options.kubeconfig and not options.check:
        parser.error("--kubeconfig is of --check; add --check")
    if options.config and not options.check:
        parser.error("--config is the device file of --check; add --check")
    if options.vfs < 0:
        parser.error(f"--vfs {options.vfs} is negative; write 1 or more")
    return options


def _of_networks(kubeconfig: Path | None) -> list[str]:
    """A sentence for each definition whose addresses every node allocates.  Raises IoFailure."""
    if kubeconfig is None:
        return []
    read = Reader(Path("/"))
    known = Facts(cluster=cluster(read, kubeconfig))
    if read.unread:
        raise IoFailure(f"--kubeconfig {kubeconfig}: {read.unread[f'{kubeconfig}']}")
    return [f"{one.evidence}; {one.remedy}" for one in range_on_each_node(known)]


def _written(folder: Path, files: Mapping[str, str]) -> str:
    """Write the files; return a line for each.  Raises IoFailure, OSError."""
    if there := [name for name in files if os.path.lexists(folder / name)]:
        raise IoFailure(f"--output {folder}: {', '.join(there)} exists there; name another directory, or move it")
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        with (folder / name).open("x") as file:
            file.write(text)
    return "".join(f"wrote {folder / name}\n" for name in files)


def _differences(
    plan: Plan, found: Sequence[Nic], planned: Settings, present: Settings, *, is_whole: bool
) -> Iterator[str]:
    """A sentence for each difference.  The resources' names do not count, nor how they group devices."""
    whys = {**plan.left_out, **{rail.nic.device.id: rail.why for rail in plan.rails}}
    selected = list[Resource]()
    for nic in found:
        one, why = nic.device, whys[nic.device.id]
        vfs = nic.of(Kind.VF) or [_possible_vf(one)] * bool(nic.total_vfs)
        for part, devices in (("it as a whole", [one]), ("its VFs", vfs), ("its scalable functions", nic.of(Kind.SF))):
            ours, theirs = _offered(planned, devices), _offered(present, devices)
            if ours != theirs:
                says = f"{_says(theirs, devices, part)}; hpn plan {_says(ours, devices, part)}"
                yield f"{nic.title}: {says}, because {why}"
            selected += [resource for resource in present.resources if any(_selects(resource, d) for d in devices)]
        if (wanted := _provisioned(planned, one)) != (has := _provisioned(present, one)):
            yield f"{nic.title}: gives it {has}; hpn plan gives it {wanted}"
    if is_whole:
        rest = [resource for resource in present.resources if resource not in selected]
        yield from (f"{resource.full_name} selects no PF or bond of this node, nor a part of one" for resource in rest)
    if planned.rdma_exclusive not in (None, present.rdma_exclusive):
        yield f"does not set rdmaNamespaces to {plan.mode}; hpn plan does"


def _ways(present: Settings, by: str) -> Iterator[str]:
    for resource in present.resources:
        if resource.by_dra != (by == DRA):
            yield f"offers {resource.full_name} by {'dra' if resource.by_dra else 'devicePlugin'}; hpn plan by {by}"


def _possible_vf(pf: Device) -> Device:
    return replace(pf, id="", kind=Kind.VF, product="", driver="", netdevs=(), names=(), index=0, vfs=0)


def _offered(file: Settings, devices: Sequence[Device]) -> dict[str, Sharing]:
    """The devices that a file selects, by id."""
    found = dict[str, Sharing]()
    for resource in reversed(file.resources):  # the first that selects a device has it
        found |= {one.id: resource.sharing for one in devices if _selects(resource, one)}
    return found


def _selects(resource: Resource, one: Device) -> bool:
    """Whether a resource selects a device.  The product and driver of a VF that does not exist are unknown."""
    selectors = resource.selectors
    if not one.id:
        selectors = tuple(replace(by, products=frozenset(), drivers=frozenset()) for by in selectors)
    return any(agrees(by, one) for by in selectors)


def _says(found: Mapping[str, Sharing], devices: Sequence[Device], part: str) -> str:
    if not found:
        return f"does not offer {part}"
    some = "" if len(found) == len(devices) else f"{len(found)} of "
    return f"offers {some}{part} {' and '.join(sorted({_WAYS[one] for one in found.values()}))}"


def _provisioned(file: Settings, pf: Device) -> str:
    rules = [rule for rule in file.pfs if agrees(rule.selector, pf)]
    count = next((rule.num_vfs for rule in rules if rule.num_vfs is not None), pf.vfs)
    return f"{count} VFs{' with GUIDs' if any(rule.guids for rule in rules) else ''}"
