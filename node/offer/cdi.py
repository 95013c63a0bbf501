"""Specifications of the Container Device Interface, which a container runtime reads
(https://github.com/cncf-tags/container-device-interface, SPEC.md 0.5.0): a file for each resource."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import files, sysfs
from hardware.model import Device
from node.model import Offer, Resource, devices_of
from node.offer import needs

FOLDER: Final = "var/run/cdi"
KIND: Final = "hpn.io/net"
_VERSION: Final = "0.5.0"  # the first in which a name may begin with a digit
_START, _END = "hpn-", ".json"
_LIMIT: Final = 1 << 24  # bytes
# What a device's name may be; a runtime refuses the whole file for one that is not.
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def name(resource: Resource, device: Device) -> str:
    """The qualified name of a resource's device.

    A prefix has no '_', so two resources never give one name to different things.
    """
    return f"{KIND}={_device(resource, device)}"


def write(offers: Sequence[Offer], root: Path) -> None:
    """Write the files of the offers that are given by CDI, and remove other files of ours.  Raises OSError.

    A file that says already what it should is not touched, because a runtime reads all again after each change.
    """
    wanted = {_file(o.resource): text for o in offers if o.resource.cdi and (text := _text(o, root))}
    folder = f"{root / FOLDER}"
    for stale in _ours(folder) - wanted.keys():
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{stale}")
    for file, text in wanted.items():
        if _read(f"{folder}/{file}") != text:  # guard: unchanged = True
            with files.open_directory(folder, make=0o755) as fd:
                files.replace(fd, file, text)


def _text(offer: Offer, root: Path) -> str:
    """The file's content; empty if no device has a node, because a device without edits is not valid.

    What comes with every device stands once for all of them: a runtime adds it to whichever it is asked for.
    """
    common = needs.common_nodes(offer, root)
    entries = [
        {"name": _device(offer.resource, device), "containerEdits": _edits(paths)}
        for device in devices_of(offer.units)
        if (paths := needs.nodes(offer.resource, device, root) or common)
    ]
    body = {"cdiVersion": _VERSION, "kind": KIND, "devices": entries} | (
        {"containerEdits": _edits(common)} if common else {}
    )
    return json.dumps(body, indent=1) + "\n" if entries else ""


def _edits(paths: Sequence[str]) -> dict[str, list[dict[str, str]]]:
    return {"deviceNodes": [{"path": path, "permissions": "rw"} for path in paths]}


def _device(resource: Resource, device: Device) -> str:
    """Its name in the file.  The kernel lets an interface be called "eth+1", and CDI does not: then it is ":" and the
    name's bytes, because no interface's name has a colon."""
    said = device.id if _NAME.fullmatch(device.id) else f":{device.id.encode().hex()}"
    return f"{resource.prefix}_{resource.name}_{said}"


def _file(resource: Resource) -> str:
    return f"{_START}{resource.prefix}_{resource.name}{_END}"


def _ours(folder: str) -> set[str]:
    """The files that have our kind.  The name alone could be anybody's."""
    # guard below: our-name ((_START) and one)
    named = [one for one in sysfs.names(folder) if one.startswith(_START) and one.endswith(_END)]
    return {one for one in named if f'"kind": "{KIND}"' in _read(f"{folder}/{one}")}  # guard: our-kind (folder)


def _read(path: str) -> str:
    """The file's content; empty if it is not there, or cannot be one of ours."""
    try:
        fd = files.open_regular(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return files.read_all(fd, _LIMIT).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
