"""The files that describe a device: the device plugin's, and an attachment's.

https://github.com/k8snetworkplumbingwg/device-info-spec
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path("/var/run/k8s.cni.cncf.io/devinfo")
# The members that Multus reads from a file; it passes on no others.
_MEMBERS = {
    "pci": {"pci-address", "vhost-net", "rdma-device", "pf-pci-address", "representor-device"},
    "vdpa": {"parent-device", "driver", "path", "pci-address", "pf-pci-address", "representor-device"},
    "vhost-user": {"mode", "path"},
    "memif": {"role", "path", "mode"},
}


def of_attachment(name: str, container_id: str, ifname: str) -> Path:
    """An attachment's file; ``name`` is its network's, with the namespace."""
    return FOLDER / "cni" / f"{name}-{container_id}_{ifname}".replace("/", "-")


def read(file: Path) -> dict[str, Any] | None:
    """The content of a file, or None if it is missing or unreadable."""
    try:
        said = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    known = {key: said[key] for key in ("type", "version") if said.get(key)}
    parts = {key: {k: v for k, v in said[key].items() if k in of} for key, of in _MEMBERS.items() if said.get(key)}
    return known | parts


def copy(resource: str, device: str, to: Path) -> None:
    """Copy the device plugin's file for the device to the attachment, unless it has a file already."""
    name = f"{resource}-{device}-device.json".replace("/", "-")
    said = read(FOLDER / "dp" / name)
    if said is None or to.exists():
        return
    # Multus makes the folder with no permissions at all.
    with suppress(FileExistsError):
        to.parent.mkdir(0, parents=True)
    to.write_text(json.dumps(said))
    to.chmod(0o444)


def remove(file: Path) -> None:
    with suppress(OSError):
        file.unlink()
