"""The files of a plan: a device file, NetworkAttachmentDefinitions, a label's meaning, for DRA DeviceClasses, and Helm
values."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Final

from base.protocol import written
from base.protocol.errors import InvalidConfig
from base.protocol.spec import WIDELY_TAKEN, Json
from base.table import printable
from ctl.plan.choice import MOVED, Nic, Plan, Rail, why_not_free
from hardware.model import Kind
from ipam import config as ipam_config
from node import config
from node.dra.slices import classes

DEVICES: Final = "devices.yaml"
VALUES: Final = "values.yaml"
DRA: Final = "dra"
_LABEL: Final = "hpn.io/type"
_RAILS: Final = "rails"  # a network of several rails, and the key that lists them
Groups = Mapping[str, Sequence[Rail]]  # the rails of each network


def documents(plan: Plan, found: Sequence[Nic], prefix: str, subnet: str, by: str, *, is_each: bool) -> dict[str, str]:
    """The text of each file, by name.  ``by`` is that of all resources; empty for the default.  ``is_each``: a network
    for each rail, as always by DRA, whose devices are in no checkpoint of kubelet.

    Raises InvalidConfig, and config.BadFile if hpn node would refuse the device file.
    """
    groups = _groups(plan, is_each=is_each or by == DRA)
    provisioning = [*_provisioning(plan)]
    lines = [*_choices(plan, found), *_resources(plan, prefix, by), *provisioning]
    devices = [printable(line) for line in lines]
    plugins, meaning = _plugins(plan, groups, prefix, subnet), _meaning(plan, groups, prefix)
    values = _values(devices, plugins, meaning, prefix, is_provisioned=bool(provisioning), is_by_dra=by == DRA)
    text = "".join(f"{line}\n" for line in devices)
    settings = config.settings(text.encode(), is_yaml=True)
    return {
        DEVICES: text,
        "networks.yaml": "---\n".join(_networks(plugins, prefix)),
        "label.yaml": _label(meaning),
        **({"classes.yaml": classes.text(settings.resources)} if by == DRA else {}),
        VALUES: "".join(f"{line}\n" for line in values),
    }


def _groups(plan: Plan, *, is_each: bool) -> Groups:
    """One network for the rails with the same keys and kind of link, unless each rail has its own."""
    alike = defaultdict[str, list[Rail]](list)
    for rail in plan.networks:
        alike[rail.name if is_each else f"{_keys(rail, plan.mode)} {rail.nic.is_infiniband}"].append(rail)
    there = {rail.name for rail in plan.networks}
    names = (name for at in itertools.count(1) if (name := f"{_RAILS}{at if at > 1 else ''}") not in there)
    return {rails[0].name if len(rails) == 1 else next(names): rails for rails in alike.values()}


def _choices(plan: Plan, found: Sequence[Nic]) -> Iterator[str]:
    yield f"# For {config.OURS}.  hpn node --check FILE shows what a file offers."
    for nic in found:
        if why := plan.left_out.get(nic.device.id):
            yield f"# {nic.title}: left out, {why}"


def _resources(plan: Plan, prefix: str, by: str) -> Iterator[str]:
    yield "resources:"
    for rail in plan.rails:
        how, one = rail.how, rail.nic.device
        facts = [
            *(rdma.name for rdma in one.rdma),
            *([f"NUMA {one.numa}"] if one.numa >= 0 else []),
            *rail.nic.gpus,
        ]
        yield f"# {', '.join([rail.nic.title, *facts])}: {rail.why}"
        for vf in rail.nic.of(Kind.VF) if how == "vf" else ():
            if why := why_not_free(vf):
                yield f"# VF {vf.index} ({vf.id}): left out, {why}"
        yield f"- name: {json.dumps(f'{prefix}/{rail.name}')}"
        yield f"  kind: {how}"
        if by:
            yield f"  by: {by}"
        if how == "master" and plan.mode == "shared" and rail.has_rdma:
            yield "  rdma: verbs"
        key = {"shared": "pciAddresses", "pf": "ifNames", "master": "ifNames"}.get(how, "pfNames")
        yield f"  selectors: {json.dumps({key: [f'{rail.nic.name}{_some(rail)}']})}"


def _some(rail: Rail) -> str:
    """ "#0,2,3": the VFs that pods can have; empty for all."""
    free, vfs = rail.nic.free(), rail.nic.of(Kind.VF)
    return f"#{','.join(f'{vf.index}' for vf in free)}" if rail.how == "vf" and len(free) < len(vfs) else ""


def _provisioning(plan: Plan) -> Iterator[str]:
    rules = dict[tuple[int, bool], list[str]]()
    for rail in plan.rails:
        if rail.how == "vf":
            rules.setdefault((rail.vfs, rail.nic.is_infiniband), []).append(rail.nic.name)
    if rules:
        yield "# hpn node creates the VFs that are missing."
        yield "pfs:"
    for (count, is_infiniband), names in rules.items():
        yield f"- selectors: {json.dumps({'ifNames': names})}"
        yield f"  numVfs: {count}"
        if is_infiniband:
            yield "  guids: true # without which the VFs' ports stay down"
    if plan.mode:
        moves = plan.mode == "exclusive"
        yield f"# {'An RDMA device moves into its pod' if moves else 'Pods share the RDMA devices of the host'}."
        yield f"rdmaNamespaces: {plan.mode}"


def _plugins(plan: Plan, groups: Groups, prefix: str, first: str) -> dict[str, Json]:
    """Each network's plugin.  Raises InvalidConfig."""
    subnets = dict(zip([rail.name for rail in plan.networks], _subnets(first, len(plan.networks)), strict=True))
    found = dict[str, Json]()
    for name, rails in groups.items():
        plugin, interface = _keys(rails[0], plan.mode), "master" if rails[0].how == "master" else "pf"
        ranges = [{interface: rail.nic.name, "subnet": subnets[rail.name]} for rail in rails]
        ipam: Json = {_RAILS: ranges, "align": True}
        if len(rails) > 1:
            plugin[_RAILS] = [f"{prefix}/{rail.name}" for rail in rails]
        else:
            ipam = {"subnet": subnets[name]}
            plugin |= {"master": rails[0].nic.name} if interface == "master" else {}
        if len(plan.networks) > 1:
            plugin["multiRail"] = True
        plugin["ipam"] = {"type": "hpn-ipam", **ipam, "cluster": {"backend": "kubernetes"}}
        ipam_config.load(plugin, {})
        found[name] = plugin | {"capabilities": {"ips": True}}
    return found


def _networks(plugins: Mapping[str, Json], prefix: str) -> Iterator[str]:
    note = (
        "# All nodes share the addresses: kubectl apply -k packaging/kubernetes/cluster.  Nothing else may use them.\n"
    )
    for name, plugin in plugins.items():
        keys = ",\n      ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in plugin.items())
        keys = re.sub(r' ?(\{"(?:pf|master)")', r"\n        \1", keys)
        resource = f"  annotations:\n    k8s.v1.cni.cncf.io/resourceName: {prefix}/{name}\n"
        yield (
            f"{note}apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: {name}\n"
            f"{'' if _RAILS in plugin else resource}spec:\n  config: |\n"
            f'    {{"cniVersion": "{WIDELY_TAKEN}", "name": "{name}", "plugins": [{{\n      {keys}}}]}}\n'
        )
        note = ""


def _subnets(first: str, count: int) -> list[str]:
    """As many subnets, one after the other.  Raises InvalidConfig."""
    try:
        net = ip_network(f"{written.cidr(first)}")
        begins = [int(net.network_address) + number * net.num_addresses for number in range(count)]
        return [f"{type(net)((begin, net.prefixlen))}" for begin in begins]
    except ValueError as e:
        raise InvalidConfig(f"--subnet {first!r}, for {count} rails: {e}; write another, such as 10.56.0.0/16") from e


def _keys(rail: Rail, mode: str) -> Json:
    """The keys of a rail's plugin that do not name the rail."""
    how, nic = rail.how, rail.nic
    keys: Json = {"kind": "sriov" if how == "vf" else "host-device"}
    if how == "pf" and nic.is_infiniband:  # host-device refuses InfiniBand
        keys = {"kind": "sriov", "pfOnly": True}
    elif how == "master":
        keys = {"kind": "ipoib" if nic.is_infiniband else "macvlan"}
    if rail.has_rdma and (how in MOVED or mode == "shared"):
        # iWARP has no GIDs for addresses, and "required" waits for them.
        keys["rdma"] = {"mode": mode, **({"required": True} if how in MOVED and not nic.is_iwarp else {})}
    return {"type": "hpn", **keys}


def _values(
    devices: Sequence[str],
    plugins: Mapping[str, Json],
    meaning: Json,
    prefix: str,
    *,
    is_provisioned: bool,
    is_by_dra: bool,
) -> Iterator[str]:
    command = "helm upgrade --install hpn packaging/helm/hpn --namespace kube-system"
    yield f"# {command} --values FILE --set image.repository=YOURS"
    yield "devices: |"
    yield from (f"  {line}" for line in devices)
    if is_provisioned:
        yield "# hpn node gets the node's /sys to write to."
        yield "provision: true"
    yield "networks:" if plugins else "networks: []"
    for name, plugin in plugins.items():
        yield f"- name: {json.dumps(name)}"
        if _RAILS not in plugin:
            yield f"  resourceName: {json.dumps(f'{prefix}/{name}')}"
        yield "  config:"
        yield "    plugins:"
        yield f"    - {json.dumps(plugin)}"
    if plugins:
        yield "# All nodes share the addresses.  Nothing else may use them."
        yield "clusterAddresses: {enabled: true}"
    if is_by_dra:
        yield "# Once for the cluster: kubectl apply --filename classes.yaml, of hpn plan --by dra --output DIR."
        yield "claims: {enabled: true}"
    yield "# A pod with this label gets every rail.  This needs Kubernetes 1.36."
    yield f"label: {json.dumps({'enabled': True, 'name': _LABEL, 'values': meaning})}"


def _meaning(plan: Plan, groups: Groups, prefix: str) -> Json:
    """What the label's value stands for.  A network's interfaces count on from the one that it is asked for."""
    begins = itertools.accumulate((len(rails) for rails in groups.values()), initial=0)
    networks = [f"default/{name}@hpn{number}" for name, number in zip(groups, begins, strict=False)]
    resources = [f"{prefix}/{rail.name}" for rail in plan.rails]
    return {"rdma" if plan.mode else "rails": {"networks": networks, "resources": resources}}


def _label(meaning: Json) -> str:
    return (
        "# For packaging/kubernetes/label: a pod with this label gets every rail.\napiVersion: v1\nkind: ConfigMap\n"
        'metadata:\n  name: hpn-label\n  annotations:\n    config.kubernetes.io/local-config: "true"\ndata:\n'
        f"  label: {_LABEL}\n  values: |\n    {json.dumps(meaning)}\n"
    )
