"""Container Device Interface specifications for container runtimes: a file per resource.

Source: https://github.com/cncf-tags/container-device-interface, SPEC.md 0.5.0.  Hooks are older than that.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from base.kernel import files, sysfs
from base.protocol.spec import Json
from hardware.model import Device
from node.model import Offer, Resource, devices_of
from node.offer import hook, needs

FOLDER: Final = "var/run/cdi"
KIND: Final = "hpn.io/net"
_VERSION: Final = "0.5.0"  # the first that allows a digit at a name's start
_START, _END = "hpn-", ".json"
_OURS: Final = "hpn.io/"  # our kinds begin so
_BELOW: Final = ("run", "cdi")  # FOLDER without the link
_LIMIT: Final = 1 << 24  # bytes
# A valid name of a device; a runtime refuses a whole file for another one.
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def name(resource: Resource, device: Device) -> str:
    """The qualified name of a resource's device.

    It is unique to the resource, because a prefix has no '_'.
    """
    return f"{KIND}={_device(resource, device)}"


def write(offers: Sequence[Offer], root: Path) -> None:
    """Write the files of offers with CDI, and remove other files of this program.  Raises OSError.

    A file with the right content is not touched, because a runtime reads all files again after each change.
    """
    wanted = {_file(o.resource): text for o in offers if o.resource.cdi and (text := _text(o, root))}
    folder = f"{root / FOLDER}"
    for stale in _ours(folder) - wanted.keys():
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/{stale}")
    for file, text in wanted.items():
        if _read(f"{folder}/{file}") != text:
            with files.open_directory(folder, make=0o755) as fd:
                files.replace(fd, file, text)


def release(root: Path) -> list[str]:
    """Remove the hooks from all files of this program, also of claims, because the runtime starts no container with a
    missing hook.  Return the files' paths.  Raises OSError.

    Links below the root are not followed.
    """
    changed = list[str]()
    with suppress(FileNotFoundError, NotADirectoryError), files.open_directory(f"{root}", _BELOW) as folder:
        for file in sorted(os.listdir(f"/proc/self/fd/{folder}")):
            if file.startswith(_START) and file.endswith(_END) and (text := _unhooked(folder, file)):
                files.replace(folder, file, text)
                changed.append(f"{root.joinpath(*_BELOW, file)}")
    return changed


def _unhooked(folder: int, file: str) -> str:
    """The file's text without hooks; empty if it is another program's, has none, or no runtime can read it."""
    try:
        body = json.loads(files.read(file, _LIMIT, folder))
        hooks = [one["containerEdits"].pop("hooks", None) for one in body["devices"]]
        return json.dumps(body, indent=1) + "\n" if any(hooks) and body["kind"].startswith(_OURS) else ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def _text(offer: Offer, root: Path) -> str:
    """The file's content; empty if no device has a node, because a device without edits is invalid.

    The common nodes stand once for all devices: a runtime adds them to each requested device.
    """
    common, most = needs.common_nodes(offer, root), hook.most()

    def edits(paths: Sequence[str]) -> Json:
        hooks = hook.hooks(offer.resource.memlock, (*paths, *common), most)
        return {**_edits(paths), **({"hooks": hooks} if hooks else {})}

    entries = [
        {"name": _device(offer.resource, device), "containerEdits": edits(paths)}
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
    """The device's name in the file.

    The kernel allows interface names that CDI does not, such as "eth+1".  Then it is ":" and the name's bytes in
    hexadecimal, because no interface's name has a colon.
    """
    one = device.id if _NAME.fullmatch(device.id) else f":{device.id.encode().hex()}"
    return f"{resource.prefix}_{resource.name}_{one}"


def _file(resource: Resource) -> str:
    return f"{_START}{resource.prefix}_{resource.name}{_END}"


def _ours(folder: str) -> set[str]:
    """The files with our kind; another program could use such a file name."""
    named = [one for one in sysfs.names(folder) if one.startswith(_START) and one.endswith(_END)]
    return {one for one in named if f'"kind": "{KIND}"' in _read(f"{folder}/{one}")}


def _read(path: str) -> str:
    """Return the file's content; empty if it cannot be read, or is larger than _LIMIT, which no file of ours is."""
    with suppress(OSError):
        return files.read(path, _LIMIT).decode(errors="replace")
    return ""
