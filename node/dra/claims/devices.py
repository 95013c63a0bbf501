"""A device of the slices as a claim gets it: its CNI name, attributes and device nodes, and why no pod may have it."""

from typing import Any, Final

from hardware import functions
from node.dra.claims.prepare import Found
from node.dra.slices import content
from node.dra.slices.content import Entry
from node.offer import answers, needs

_ID: Final = "k8s.cni.cncf.io/deviceID"


def found(entry: Entry, problem: str) -> Found:
    """The device, with the ``problem`` that is known, or another one."""
    resource = entry.resource
    attributes = content.attributes(entry, functions.root)
    granted = granted_now(entry)
    try:
        for device in entry.devices:
            answers.refuse_gone(resource, device)
        for node in granted["nodes"]:
            answers.refuse_missing(resource, node)
    except answers.Refused as e:
        problem = problem or str(e)
    chosen = attributes[_ID]["string"]
    return Found(chosen, resource.kind, resource.full_name, attributes, problem, **granted)


def granted_now(entry: Entry) -> dict[str, Any]:
    """The members ``nodes`` and ``info`` of claims.Device, which change with the numbers of RDMA devices."""
    nodes = (node for device in entry.devices for node in needs.nodes(entry.resource, device, answers.ROOT))
    return {"nodes": tuple(dict.fromkeys(nodes)), "info": answers.information(entry.resource, entry.devices)}
