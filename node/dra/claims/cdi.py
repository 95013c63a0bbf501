"""A prepared claim's CDI specification: the device nodes and variables of its devices, and the files that its
containers wait for.

Source: https://github.com/cncf-tags/container-device-interface, SPEC.md 0.5.0.  A runtime starts no container with a
mount of a missing file.  ADD makes the file when the interface is attached, so no container runs without its interface
(docs/develop/node.md).
"""

import json
import os
from contextlib import suppress
from typing import Any, Final

from base.kernel import files
from base.protocol.spec import Json
from base.state import claims
from base.state.claims import Claim
from node.dra import DRIVER
from node.offer import answers, hook

KIND: Final = "hpn.io/claim"
FOLDER: Final = "/var/run/cdi"
_VERSION: Final = "0.5.0"
# Where containers read metadata (KEP-5304; dynamic-resource-allocation, api/metadata).
_METADATA: Final = "/var/run/kubernetes.io/dra-device-attributes"


def name(uid: str, number: int) -> str:
    """The qualified name of a claim's device."""
    return f"{KIND}={uid}-{number}"


def write(claim: Claim) -> None:
    """Write the claim's file.  Raises OSError."""
    body = {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "devices": [
            {"name": f"{claim.uid}-{number}", "containerEdits": _edits(claim, number)}
            for number in range(len(claim.devices))
        ],
    }
    with files.open_directory(FOLDER, make=0o755) as folder:
        files.replace(folder, _file(claim.uid), json.dumps(body, indent=1) + "\n")


def remove(uid: str) -> None:
    """Remove a claim's file, if there is one.  Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(f"{FOLDER}/{_file(uid)}")


def _file(uid: str) -> str:
    return f"hpn-claim-{uid}.json"


def _edits(claim: Claim, number: int) -> Json:
    device = claim.devices[number]
    request = device.request.partition("/")[0]
    first = claim.first_of_request(number)
    named = ("resourceclaimtemplates", claim.pod_claim) if claim.pod_claim else ("resourceclaims", claim.name)
    mount: dict[str, Any] = {
        "hostPath": claims.gate(claim.uid, first),
        "containerPath": "/".join((_METADATA, *named, request, f"{DRIVER}-metadata.json")),
        "options": ["ro", "bind"],
    }
    edits: Json = {"mounts": [mount]}
    if device.info:
        # A container gets all devices of a request, and a variable has one value.
        alike = [one for one in claim.devices if (one.request, one.resource) == (device.request, device.resource)]
        variables = answers.environment(device.resource, {name: of for one in alike for name, of in one.info.items()})
        edits["env"] = [f"{name}={text}" for name, text in variables.items()]
    if device.nodes:
        edits["deviceNodes"] = [{"path": path, "permissions": "rw"} for path in device.nodes]
    if number == first:  # a container gets all devices of a request
        alike = [one for one in claim.devices if one.request == device.request]
        nodes = [node for one in alike for node in one.nodes]
        if found := hook.hooks(device.memlock, nodes, hook.most()):
            edits["hooks"] = found
    return edits
