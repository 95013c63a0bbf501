"""kubelet's checkpoint: the units that device plugins gave to pods (kubernetes: pkg/kubelet/cm/devicemanager).

kubelet writes it before it starts a pod, and removes what ended pods had later.  Unlike its list
(base/kubelet/client.py), it names a pod by UID, so an earlier pod of the same name lends no device.
"""

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from base.kernel import files

NAME: Final = "kubelet_internal_checkpoint"
_MOST: Final = 1 << 26  # bytes


class Given(NamedTuple):
    """A container's units of one resource."""

    pod_uid: str
    resource: str
    ids: tuple[str, ...]


def file(kubelet: Path) -> Path:
    """Its path below kubelet's directory."""
    return kubelet / "device-plugins" / NAME


def read(kubelet: Path) -> list[Given]:
    """All units that pods have or had.  kubelet makes the directory at its start, and the file for the first device
    plugin, so none without the file.  Raises OSError, and ValueError for a format that is unknown."""
    path = file(kubelet)
    if NAME not in os.listdir(path.parent):
        return []
    try:
        return [
            Given(str(entry["PodUID"]), str(entry["ResourceName"]), tuple(map(str, _ids(entry["DeviceIDs"]))))
            for entry in json.loads(files.read(f"{path}", _MOST))["Data"]["PodDeviceEntries"] or []
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"its format is unknown: {e!r}") from e


def _ids(by_numa_node: dict[str, list[str]]) -> list[str]:
    return sorted(one for ids in by_numa_node.values() for one in ids)
