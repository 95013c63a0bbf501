"""The files of a plan: a device file, NetworkAttachmentDefinitions, a label's meaning, for DRA DeviceClasses, and Helm
values."""

import json
import re
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
_ONE: Final = "rails"  # the resource and the network of all rails
Groups = Mapping[str, Sequence[Rail]]  # the rails of each resource


def documents(plan: Plan, found: Sequence[Nic], prefix: str, subnet: str, by: str, *, is_one: bool) -> dict[str, str]:
    """The text of each file, by name.  ``by`` is that of all resources; empty for the default.

    Raises InvalidConfig, and config.BadFile if hpn node would refuse the device file.
    """
    if is_one:
        _refuse_mixture(plan.networks)
    groups: dict[str, Sequence[Rail]] = {_ONE: plan.networks} if is_one else {r.name: [r] for r in plan.networks}
    shared = {rail.name: [rail] for rail in plan.rails if rail.how == "shared"}
    provisioning = [*_provisioning(plan)]
    lines = [*_choices(plan, found), *_resources(plan, groups | shared, prefix, by), *provisioning]
    devices = [printable(line) for line in lines]
    plugins, meaning = _plugins(plan, groups, subnet), _meaning(plan, groups, shared, prefix)
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


def _refuse_mixture(rails: Sequence[Rail]) -> None:
    kinds = {(rail.how, rail.nic.is_infiniband) for rail in rails}
    if len(kinds) != 1 or kinds & {("master", False), ("master", True)}:
        there = ", ".join(f"{rail.name} ({rail.how})" for rail in rails) or "none"
        why = "one network serves only VFs, only scalable functions or only whole PFs, and the rails are"
        raise InvalidConfig(f"--one: {why} {there}; add --as vf, name some of them, or remove --one")


def _choices(plan: Plan, found: Sequence[Nic]) -> Iterator[str]:
    yield f"# For {config.OURS}.  hpn node --check FILE shows what a file offers."
    for nic in found:
        if why := plan.left_out.get(nic.device.id):
            yield f"# {nic.title}: left out, {why}"


def _resources(plan: Plan, groups: Groups, prefix: str, by: str) -> Iterator[str]:
    yield "resources:"
    for name, rails in groups.items():
        how = rails[0].how
        for rail in rails:
            one = rail.nic.device
            facts = [
                *(rdma.name for rdma in one.rdma),
                *([f"NUMA {one.numa}"] if one.numa >= 0 else []),
                *rail.nic.gpus,
            ]
            yield f"# {', '.join([rail.nic.title, *facts])}: {rail.why}"
            for vf in rail.nic.of(Kind.VF) if how == "vf" else ():
                if why := why_not_free(vf):
                    yield f"# VF {vf.index} ({vf.id}): left out, {why}"
        yield f"- name: {json.dumps(f'{prefix}/{name}')}"
        yield f"  kind: {how}"
        if by:
            yield f"  by: {by}"
        if how == "master" and plan.mode == "shared" and rails[0].has_rdma:
            yield "  rdma: verbs"
        key = {"shared": "pciAddresses", "pf": "ifNames", "master": "ifNames"}.get(how, "pfNames")
        yield f"  selectors: {json.dumps({key: [f'{rail.nic.name}{_some(rail)}' for rail in rails]})}"


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


def _plugins(plan: Plan, groups: Groups, first: str) -> dict[str, Json]:
    """Each network's plugin.  Raises InvalidConfig."""
    subnets = dict(zip([rail.name for rail in plan.networks], _subnets(first, len(plan.networks)), strict=True))
    found = dict[str, Json]()
    for name, rails in groups.items():
        plugin = _plugin(rails, plan.mode) | ({"multiRail": True} if len(plan.networks) > 1 else {})
        ipam: Json = {"type": "hpn-ipam", "subnet": subnets.get(name)}
        if name == _ONE and name not in subnets:
            of_pfs = [{"pf": rail.nic.name, "subnet": subnets[rail.name]} for rail in rails]
            ipam = {"type": "hpn-ipam", "rails": of_pfs, "align": True}
        plugin["ipam"] = ipam | {"cluster": {"backend": "kubernetes"}}
        ipam_config.load(plugin, {})
        found[name] = plugin | {"capabilities": {"ips": True}}
    return found


def _networks(plugins: Mapping[str, Json], prefix: str) -> Iterator[str]:
    note = (
        "# All nodes share the addresses: kubectl apply -k packaging/kubernetes/cluster.  Nothing else may use them.\n"
    )
    for name, plugin in plugins.items():
        keys = ",\n      ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in plugin.items())
        keys = re.sub(r' ?\{"pf"', '\n        {"pf"', keys)
        yield (
            f"{note}apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: {name}\n"
            f"  annotations:\n    k8s.v1.cni.cncf.io/resourceName: {prefix}/{name}\nspec:\n  config: |\n"
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


def _plugin(rails: Sequence[Rail], mode: str) -> Json:
    how, nic = rails[0].how, rails[0].nic
    keys: Json = {"kind": "sriov" if how == "vf" else "host-device"}
    if how == "pf" and nic.is_infiniband:  # host-device refuses InfiniBand
        keys = {"kind": "sriov", "pfOnly": True}
    elif how == "master":
        keys = {"kind": "ipoib" if nic.is_infiniband else "macvlan", "master": nic.name}
    if all(rail.has_rdma for rail in rails) and (how in MOVED or mode == "shared"):
        # iWARP has no GIDs for addresses, and "required" waits for them.
        is_required = how in MOVED and not any(rail.nic.is_iwarp for rail in rails)
        keys["rdma"] = {"mode": mode, **({"required": True} if is_required else {})}
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


def _meaning(plan: Plan, groups: Groups, shared: Groups, prefix: str) -> Json:
    """What the label's value stands for."""
    names = [name for name, rails in groups.items() for _ in rails]
    resources = [f"{prefix}/{name}" for name in [*names, *shared]]
    networks = [f"default/{name}@hpn{number}" for number, name in enumerate(names)]
    return {"rdma" if plan.mode else "rails": {"networks": networks, "resources": resources}}


def _label(meaning: Json) -> str:
    return (
        "# For packaging/kubernetes/label: a pod with this label gets every rail.\napiVersion: v1\nkind: ConfigMap\n"
        'metadata:\n  name: hpn-label\n  annotations:\n    config.kubernetes.io/local-config: "true"\ndata:\n'
        f"  label: {_LABEL}\n  values: |\n    {json.dumps(meaning)}\n"
    )
