"""The device information file: what device the pod has, for those who ask Kubernetes
(https://github.com/k8snetworkplumbingwg/device-info-spec, 1.1.0).

Multus names the file (runtimeConfig.CNIDeviceInfoFile), copies the device plugin's there before ADD, reads it into the
pod's network-status after, and removes it.  What is in it and not ours stays; GIDs are a member of their own, which
readers of the specification pass over.

Whoever writes a network's configuration can name it as well, so it lies where the node allows it (cni/state/node.py).
"""

import json
import os
from contextlib import AbstractContextManager, suppress

from cni.kernel import files
from cni.protocol.errors import InvalidConfig, IoFailure
from cni.protocol.location import is_absolute
from cni.protocol.spec import Config, Json
from cni.state import node

_VERSION = "1.1.0"
_KEY = "runtimeConfig.CNIDeviceInfoFile"
# Bytes.  A device plugin's file has a few hundred.
_LIMIT = 1 << 20


def plan(conf: Config, link: Json) -> Json:
    """The file and what is in it now, for the journal; empty where none is asked for, no PCI function is behind the
    attachment, or the file tells of a device of another type.  Raises InvalidConfig.

    Only the runtime may name it, not args: those are a pod's own words, and the file is the host's.
    """
    path = (conf.get("runtimeConfig") or {}).get("CNIDeviceInfoFile")
    if path and (not isinstance(path, str) or not is_absolute(path)):
        raise InvalidConfig(f"{_KEY} {path!r} must be an absolute path")
    if not path:
        return {}
    place = node.place(_KEY, path, node.allowed_paths("CNIDeviceInfoFile"))
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
        raise InvalidConfig(f"{_KEY} {path!r} cannot be read ({_why(e)}); remove what is there") from e
    return planned if _body(planned).get("type", "pci") == "pci" else {}


def write(planned: Json, link: Json, rdma_devs: list[str], gids: list[Json]) -> None:
    """What stands now, into the file if there is to be one.  Raises IoFailure."""
    if not planned:
        return
    body = _body(planned)
    ours = {"pci-address": _address(link), "pf-pci-address": link.get("pf"), "rdma-device": ",".join(rdma_devs)}
    body["pci"] = body.get("pci", {}) | {k: v for k, v in ours.items() if v}
    text = json.dumps({"type": "pci", "version": _VERSION, **body, "gids": gids}, indent=1) + "\n"
    try:
        with _folder(planned, 0o755) as folder:
            _replace(folder, _name(planned), text)
    except OSError as e:
        raise IoFailure(f"writing {planned['path']}: {e.strerror} ({_KEY})") from e


def undo(planned: Json) -> None:
    """The file as it was, unless it is gone already, as Multus has it.  Raises IoFailure."""
    if not planned:
        return
    before, name = planned["before"], _name(planned)
    try:
        with _folder(planned) as folder:
            _remove(folder, _temporary(name))
            if before is None:
                _remove(folder, name)
            elif _text(folder, name) not in (before, None):
                _replace(folder, name, before)
    except FileNotFoundError:  # the directory too
        return
    except OSError as e:
        raise IoFailure(f"removing {planned['path']}: {e.strerror}") from e


def _address(link: Json) -> str:
    return str(link.get("device") or link.get("pci") or "")


def _body(planned: Json) -> Json:
    if planned["before"] is None:
        return {}
    try:
        body = json.loads(planned["before"])
        if isinstance(body, dict) and isinstance(body.get("pci", {}), dict):
            return body
    except (ValueError, RecursionError):
        pass
    raise InvalidConfig(f"{_KEY} {planned['path']!r} has no device information in it; remove the file")


def _folder(planned: Json, make: int = 0) -> AbstractContextManager[int]:
    """The directory it is in, by the way that ``plan`` found allowed."""
    return files.open_directory(planned["entry"], planned["names"][:-1], make)


def _name(planned: Json) -> str:
    return str(planned["names"][-1])


def _text(folder: int, name: str) -> str | None:
    """What is in it; None where it is gone, or something else is in its place, which is left alone."""
    try:
        with open(files.open_regular(name, os.O_RDONLY, folder), "rb") as f:
            return f.read(_LIMIT).decode(errors="replace")
    except OSError:
        return None


def _replace(folder: int, name: str, text: str) -> None:
    """Not synced: what it tells of is gone with the power."""
    temporary = _temporary(name)
    _remove(folder, temporary)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o644, dir_fd=folder), "w") as f:
        f.write(text)
    os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _temporary(name: str) -> str:
    return f"{name}.hpn"


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
