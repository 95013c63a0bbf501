"""A device of the slices as a claim gets it: its CNI name, attributes and device nodes, and why no pod may have it."""

from typing import Final

from hardware import functions
from node.dra import slices
from node.dra.prepare import Found
from node.dra.slices import Entry
from node.offer import answers, needs

_ID: Final = "k8s.cni.cncf.io/deviceID"


def found(entry: Entry, problem: str) -> Found:
    """The device, with the ``problem`` that is known, or another one."""
    resource = entry.resource
    attributes = slices.attributes(entry, root)
    nodes = nodes_of(entry)
    try:
        for device in entry.devices:
            answers.refuse_gone(resource, device)
        for node in nodes:
            answers.refuse_missing(resource, node)
    except answers.Refused as e:
        problem = problem or str(e)
    chosen = attributes[_ID]["string"]
    return Found(chosen, resource.kind, resource.full_name, attributes, problem, nodes)


def nodes_of(entry: Entry) -> tuple[str, ...]:
    """The device nodes that a container gets with the device, as they are now."""
    found = (node for device in entry.devices for node in needs.nodes(entry.resource, device, answers.ROOT))
    return tuple(dict.fromkeys(found))


def root(address: str) -> str:
    """The root of a PCI function, "pci0000:3a"; empty if it is unknown."""
    return next(iter(functions.place(address).above), "")
