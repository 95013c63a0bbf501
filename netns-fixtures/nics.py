"""A machine's SR-IOV NICs and their RDMA devices, as /sys shows them.  Run as a program, it draws them.

PF ── virtfn0 ──► VF ── net/NAME, infiniband/NAME: those in the caller's namespace
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")


@dataclass(frozen=True)
class Function:
    """A PCI function, by its directory in /sys."""

    path: Path

    @property
    def address(self) -> str:
        return self.path.name

    @property
    def driver(self) -> str:
        return (self.path / "driver").resolve().name

    @property
    def netdev(self) -> str:
        """Empty if it is in another namespace."""
        return self._only("net")

    @property
    def rdma(self) -> str:
        """Empty if it is in another namespace, or does not exist."""
        return self._only("infiniband")

    @property
    def vfs(self) -> list["Function"]:
        """Ordered by their numbers, which differ from the order of their netdevs' names."""
        count = int((self.path / "sriov_numvfs").read_text())
        return [Function((self.path / f"virtfn{n}").resolve()) for n in range(count)]

    def _only(self, kind: str) -> str:
        return next((p.name for p in (self.path / kind).glob("*")), "")


def pfs() -> Iterator[Function]:
    """Every function that can have VFs, in PCI order."""
    return (Function(p.parent.resolve()) for p in sorted(DEVICES.glob("*/sriov_totalvfs")))


def table() -> list[tuple[str, ...]]:
    rows = [("", "PCI function", "driver", "netdev", "RDMA device")]
    for pf in pfs():
        rows.append(("PF", pf.address, pf.driver, pf.netdev or "-", pf.rdma or "-"))
        vfs = pf.vfs
        rows += [
            (f"{'└' if vf == vfs[-1] else '├'} VF {n}", vf.address, vf.driver, vf.netdev or "-", vf.rdma or "-")
            for n, vf in enumerate(vfs)
        ]
    return rows


def main() -> None:
    rows = table()
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"Linux {os.uname().release}\n")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
