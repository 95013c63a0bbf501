"""Comparison of an RDMA device's nodes in the pod with those that the container was given (base/state/numbers.py)."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from base.kernel import files, sysfs
from base.protocol import arguments
from base.protocol.errors import LinkUnavailable
from base.protocol.spec import Json, Request
from base.state import numbers

if TYPE_CHECKING:
    from cni.models import Common

# The runtimes' usual directory, and the one for Talos (cdiDir in packaging/helm/hpn).
_CDI: Final = ("/var/run/cdi", "/var/cdi/dynamic")
_LIMIT: Final = 1 << 24  # bytes, as in hpn node
# Seconds for hpn node to write a CDI file after the kernel's event.  An idle node needs 0.1 s; a loaded one gets a CPU
# late.  The request's budget does not count this wait, because no pod can prolong it.
_WRITTEN: Final = 10.0
_POLL: Final = 0.02


@contextmanager
def kept(attach: "Common", plan: Json, request: Request, log: list[str]) -> Iterator[None]:
    """If a device plugin chose the device, compare its nodes before and after the body.

    If they differ, the container cannot open its device.  Raises LinkUnavailable if RDMA is required, else logs it.
    """
    address = str(plan.get("device", ""))
    changes = plan.get("rdma") or (plan.get("port") and "port_guid" in plan["wanted"])
    if not changes or getattr(attach, "deviceID", "") != address:
        yield
        return
    pod = arguments.cni_args(request.var("CNI_ARGS")).get("K8S_POD_UID", "")
    given = numbers.promised(address, pod) or sysfs.rdma_nodes(address)
    yield
    now = sysfs.rdma_nodes(address)
    if now == given or _is_given_by_cdi(address, now):
        return
    numbers.promise(address, pod, given)
    required = attach.rdma.required
    remedy = "delete the pod: its successor gets the new ones; cdi: true in the device file avoids it"
    if next(_in_cdi(address), None):
        remedy = f"start hpn node, which has not written the new ones to {_CDI[0]}"
    why = (
        f"{'rdma.required: ' if required else ''}{address} has {', '.join(now) or 'no device node'} in the pod, but "
        f"the container got {', '.join(given)}, so it cannot open the device; {remedy}"
    )
    if required:
        raise LinkUnavailable(why)
    log.append(why)


def _is_given_by_cdi(address: str, nodes: tuple[str, ...]) -> bool:
    """Whether the runtime gives these nodes by CDI.  Waits for hpn node to write them."""
    uverbs = {f"/dev/infiniband/{node}" for node in nodes if node.startswith("uverbs")}
    deadline = time.monotonic() + _WRITTEN
    while written := list(_in_cdi(address)):
        if any(uverbs <= paths for paths in written):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return False


def _in_cdi(address: str) -> Iterator[set[str]]:
    """Yield the device nodes of each resource that gives the device by CDI."""
    for path in (f"{folder}/{name}" for folder in _CDI for name in sysfs.names(folder) if name.startswith("hpn-")):
        if path.endswith(".json"):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                body = json.loads(files.read(path, _LIMIT))
                for device in body["devices"]:
                    if device["name"].endswith(f"_{address}"):
                        yield {*_paths(body), *_paths(device)}


def _paths(body: Json) -> set[str]:
    return {node["path"] for node in body.get("containerEdits", {}).get("deviceNodes", ())}
