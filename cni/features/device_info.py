"""The device information file, which shows Kubernetes the pod's device (base/protocol/device_info.py has its form).

Multus names the file (runtimeConfig.CNIDeviceInfoFile), and copies the device plugin's file there before ADD.  After
ADD it reads the file into the pod's network-status, and removes it.  We keep members that are not ours.  The GIDs are
our own member, which the specification's readers ignore.

A network's configuration can name the file too, so its path must be allowed by the node (base/state/policy.py).
"""

import json
import os
from contextlib import AbstractContextManager

from base.kernel import files
from base.protocol import device_info
from base.protocol.errors import InvalidConfig, IoFailure
from base.protocol.location import is_absolute
from base.protocol.spec import Config, Json
from base.state import policy

_KEY = "runtimeConfig.CNIDeviceInfoFile"
# Bytes.  A device plugin's file has a few hundred.
_LIMIT = 1 << 20


def plan(conf: Config, link: Json) -> Json:
    """Return the file's path and present content, for the journal.

    Empty if no file is requested, the attachment has no PCI function, or the file describes a device of another type.
    Raises InvalidConfig.

    Only runtimeConfig may name the file, because a pod can write ``args``, and the file belongs to the host.
    """
    path = (conf.get("runtimeConfig") or {}).get("CNIDeviceInfoFile")
    if path and (not isinstance(path, str) or not is_absolute(path)):
        raise InvalidConfig(f"{_KEY} {path!r} must be an absolute path")
    if not path:
        return {}
    place = policy.place(_KEY, path, policy.allowed_paths("CNIDeviceInfoFile"))
    if not place.names:
        raise InvalidConfig(f"{_KEY} {path!r} is a directory of this node; name a file in it")
    if not _address(link):
        return {}
    planned: Json = {"path": path, "entry": place.entry, "names": list(place.names), "before": None}
    try:
        planned["before"] = place.read(_LIMIT).decode()
    except FileNotFoundError:
        return planned
    except (OSError, ValueError) as e:
        raise InvalidConfig(
            f"{_KEY} {path!r} cannot be read ({getattr(e, 'strerror', None) or e}); remove what is there"
        ) from e
    return planned if _body(planned).get("type", "pci") == "pci" else {}


def write(planned: Json, link: Json, rdma_devs: list[str], gids: list[Json]) -> None:
    """Write the attachment's device and GIDs into the file, if one is planned.  Raises IoFailure."""
    if not planned:
        return
    body = _body(planned)
    ours = device_info.pci(_address(link), link.get("pf") or "", rdma_devs)
    body["pci"] = body.get("pci", {}) | ours
    try:
        with _folder(planned, 0o755) as folder:
            files.replace(folder, _name(planned), device_info.text(body | {"gids": gids}))
    except OSError as e:
        raise IoFailure(f"writing {planned['path']}: {e.strerror} ({_KEY})") from e


def undo(planned: Json) -> None:
    """Restore the file, unless another program has removed it, as Multus does.  Raises IoFailure."""
    if not planned:
        return
    before, name = planned["before"], _name(planned)
    try:
        with _folder(planned) as folder:
            files.remove_unfinished(folder, name)
            if before is None:
                files.remove(folder, name)
            elif _text(folder, name) not in (before, None):
                files.replace(folder, name, before)
    except FileNotFoundError:  # the directory is gone, too
        return
    except OSError as e:
        raise IoFailure(f"removing {planned['path']}: {e.strerror}") from e


def _address(link: Json) -> str:
    """Return the address of the PCI function that is the device, or contains it."""
    return str(link.get("pci", link.get("device")) or "")


def _body(planned: Json) -> Json:
    if planned["before"] is None:
        return {}
    try:
        body = json.loads(planned["before"])
        if isinstance(body, dict) and isinstance(body.get("pci", {}), dict):
            return body
    except (ValueError, RecursionError):
        pass
    raise InvalidConfig(f"{_KEY} {planned['path']!r} contains no device information; remove the file")


def _folder(planned: Json, make: int = 0) -> AbstractContextManager[int]:
    """Open the file's directory, by the path that ``plan`` found allowed."""
    return files.open_directory(planned["entry"], planned["names"][:-1], make)


def _name(planned: Json) -> str:
    return str(planned["names"][-1])


def _text(folder: int, name: str) -> str | None:
    """Return the file's content; None if it is gone, or is not a regular file, which is left alone."""
    try:
        with open(files.open_regular(name, os.O_RDONLY, folder), "rb") as f:
            return f.read(_LIMIT).decode(errors="replace")
    except OSError:
        return None
