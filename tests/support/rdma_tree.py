"""Draw RDMA devices with all their attributes in a tree like /sys.  None was recorded on a machine."""

from pathlib import Path
from typing import Final

from support.sysfs_tree import Tree, write

ZERO: Final = "0000:0000:0000:0000:0000:0000:0000:0000"


def hca(tree: Tree, name: str, device: Path | None, *, over: str = "", **attributes: str) -> Path:
    """Draw an RDMA device without ports; return its directory."""
    home = device or tree.root / "devices/virtual"
    path, verbs = home / "infiniband" / name, home / "infiniband_verbs" / f"uverbs-of-{name}"
    path.mkdir(parents=True)
    verbs.mkdir(parents=True)
    write(verbs, ibdev=name)
    if over:
        write(path, parent=over)
    common = {"node_type": "1: CA", "node_guid": "b8ce:f603:0012:3456", "sys_image_guid": "b8ce:f603:0012:3456"}
    write(path, **common | attributes)
    for one in (path, verbs):
        (tree.root / "class" / one.parent.name).mkdir(exist_ok=True)
        (tree.root / "class" / one.parent.name / one.name).symlink_to(one)
    return path


def port(hca: Path, number: int = 1, places: int = 4, **attributes: str) -> Path:
    """Draw a port with as many free places in its GID table; return its directory."""
    path = hca / "ports" / f"{number}"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys"):
        (path / folder).mkdir(parents=True)
    common = {
        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "Ethernet", "lid": "0x0", "sm_lid": "0x0",
        "sm_sl": "0", "lid_mask_count": "0", "cap_mask": "0x00010000", "rate": "100 Gb/sec (4X EDR)",
    }  # fmt: skip
    write(path, **common | attributes)
    write(path / "pkeys", **{"0": "0xffff"})
    for index in range(places):
        gid(path, index, ZERO)
    return path


def gid(port: Path, index: int, value: str, kind: str = "", netdev: str = "") -> None:
    """Write an entry of a port's table.  A missing value cannot be read, as in the kernel's free places."""
    for name, text in (("gids", value), ("gid_attrs/types", kind), ("gid_attrs/ndevs", netdev)):
        path = port / name / f"{index}"
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        if text:
            path.write_text(f"{text}\n")
        else:
            path.mkdir()
