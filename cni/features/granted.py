"""Comparison of an RDMA device's nodes in the pod with those that the container was given (base/state/numbers.py)."""

import json
import os
import time
from collections.abc import Callable, Iterator
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
def kept(attach: "Common", plan: Json, request: Request, log: list[str], claim: str = "") -> Iterator[None]:
    """If a device plugin or a claim chose the device, compare its nodes with the container's after the body.

    ``claim`` is the record's.  If they differ, the container cannot open its device.  Raises LinkUnavailable if RDMA is
    required, else logs it.
    """
    address = str(plan.get("device", ""))
    changes = plan.get("rdma") or (plan.get("port") and "port_guid" in plan["wanted"])
    if not changes or not (claim or getattr(attach, "deviceID", "") == address):
        yield
        return
    pod = arguments.cni_args(request.var("CNI_ARGS")).get("K8S_POD_UID", "")
    before = sysfs.rdma_nodes(address)
    given = before if claim else numbers.promised(address, pod) or before
    yield
    now = sysfs.rdma_nodes(address)
    if _is_given_by_claim(claim, now) if claim else now == given or _is_given_by_cdi(address, now):
        return
    remedy = "delete the pod: its successor gets the new ones; cdi: true in the device file avoids it"
    if claim or next(_in_cdi(address), None):
        remedy = f"start hpn node, which has not written the new ones to {_CDI[0]}"
    if claim:
        given = tuple(sorted(os.path.basename(path) for paths in _of_claim(claim) for path in _uverbs(paths)))
    else:
        numbers.promise(address, pod, given)
    required = attach.rdma.required
    why = (
        f"{'rdma.required: ' if required else ''}{address} has {', '.join(now) or 'no device node'} in the pod, but "
        f"the container got {', '.join(given)}, so it cannot open the device; {remedy}"
    )
    if required:
        raise LinkUnavailable(why)
    log.append(why)


def _is_given_by_cdi(address: str, nodes: tuple[str, ...]) -> bool:
    """Whether the runtime gives these nodes of a device plugin's device by CDI.  Waits for hpn node to write them."""
    return _is_written(lambda: _in_cdi(address), nodes)


def _is_given_by_claim(claim: str, nodes: tuple[str, ...]) -> bool:
    """Whether the runtime gives these nodes by the claim's own CDI file.  Waits for hpn node to write them.

    True if the file gives no RDMA device, as its resource says, or if there is none: then no container starts.
    """
    return not any(_uverbs(paths) for paths in _of_claim(claim)) or _is_written(lambda: _of_claim(claim), nodes)


def _is_written(written: Callable[[], Iterator[set[str]]], nodes: tuple[str, ...]) -> bool:
    uverbs = _uverbs({f"/dev/infiniband/{node}" for node in nodes})
    deadline = time.monotonic() + _WRITTEN
    while found := list(written()):
        if uverbs and any(uverbs <= paths for paths in found):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return False


def _uverbs(paths: set[str]) -> set[str]:
    return {path for path in paths if path.startswith("/dev/infiniband/uverbs")}


def _in_cdi(address: str) -> Iterator[set[str]]:
    """Yield the device nodes of each resource that gives the device by CDI."""
    return _written("hpn-", f"_{address}")


def _of_claim(claim: str) -> Iterator[set[str]]:
    """Yield the device nodes of a claim's device (node/dra/claims/cdi.py)."""
    uid, _, number = claim.partition("/")
    return _written(f"hpn-claim-{uid}", f"{uid}-{number}")


def _written(start: str, end: str) -> Iterator[set[str]]:
    """Yield the device nodes of each device whose name ends so, in CDI files whose names begin so."""
    for path in (f"{folder}/{name}" for folder in _CDI for name in sysfs.names(folder) if name.startswith(start)):
        if path.endswith(".json"):
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                body = json.loads(files.read(path, _LIMIT))
                for device in body["devices"]:
                    if device["name"].endswith(end):
                        yield {*_paths(body), *_paths(device)}


def _paths(body: Json) -> set[str]:
    return {node["path"] for node in body.get("containerEdits", {}).get("deviceNodes", ())}
