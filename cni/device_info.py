"""The device information file: what device the pod has, for those who ask Kubernetes
(https://github.com/k8snetworkplumbingwg/device-info-spec, 1.1.0).

Multus names the file (runtimeConfig.CNIDeviceInfoFile), copies the device plugin's there before ADD, reads it into the
pod's network-status after, and removes it.  What is in it and not ours stays; GIDs are a member of their own, which
readers of the specification pass over.
"""

import json
import os
from pathlib import Path

from cni.errors import InvalidConfig, IoFailure
from cni.location import is_absolute
from cni.spec import Config, Json

_VERSION = "1.1.0"


def plan(conf: Config, link: Json) -> Json:
    """The file and what is in it now, for the journal; empty where none is asked for, no PCI function is behind the
    attachment, or the file tells of a device of another type.  Raises InvalidConfig.

    Only the runtime may name it, not args: those are a pod's own words, and the file is the host's.
    """
    path = (conf.get("runtimeConfig") or {}).get("CNIDeviceInfoFile")
    if path and (not isinstance(path, str) or not is_absolute(path)):
        raise InvalidConfig(f"runtimeConfig.CNIDeviceInfoFile {path!r} must be an absolute path")
    if not path or not _address(link):
        return {}
    try:
        before = Path(path).read_text()
    except FileNotFoundError:
        return {"path": path, "before": None}
    except (OSError, ValueError) as e:
        raise InvalidConfig(f"runtimeConfig.CNIDeviceInfoFile {path!r} cannot be read: {e}") from e
    planned = {"path": path, "before": before}
    return planned if _body(planned).get("type", "pci") == "pci" else {}


def write(planned: Json, link: Json, rdma_devs: list[str], gids: list[Json]) -> None:
    """What stands now, into the file if there is to be one.  Raises IoFailure."""
    if not planned:
        return
    body = _body(planned)
    ours = {"pci-address": _address(link), "pf-pci-address": link.get("pf"), "rdma-device": ",".join(rdma_devs)}
    body["pci"] = body.get("pci", {}) | {k: v for k, v in ours.items() if v}
    _replace(planned["path"], json.dumps({"type": "pci", "version": _VERSION, **body, "gids": gids}, indent=1) + "\n")


def undo(planned: Json) -> None:
    """The file as it was, unless it is gone already, as Multus has it.  Raises IoFailure."""
    if not planned:
        return
    path, before = Path(planned["path"]), planned["before"]
    try:
        _temporary(path).unlink(missing_ok=True)
        if before is None:
            path.unlink(missing_ok=True)
        elif path.exists() and path.read_text(errors="replace") != before:
            _replace(planned["path"], before)
    except OSError as e:
        raise IoFailure(f"removing {path}: {e.strerror}") from e


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
    raise InvalidConfig(
        f"runtimeConfig.CNIDeviceInfoFile {planned['path']!r} has no device information in it; remove the file"
    )


def _replace(path: str, text: str) -> None:
    """Not synced: what it tells of is gone with the power."""
    temporary = _temporary(Path(path))
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", opener=_readable) as f:
            f.write(text)
        os.replace(temporary, path)
    except OSError as e:
        raise IoFailure(f"writing {path}: {e.strerror} (runtimeConfig.CNIDeviceInfoFile)") from e


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.hpn")


def _readable(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)
