"""Run in the guest with --disk: make files, synced and not, and cut the power; after another boot, list them."""

import os
import sys
from pathlib import Path

from guest.qmp import Monitor

DISK = Path("/run/lab/disk/power")


def write(name: str, *, synced: bool) -> Path:
    path = DISK / name
    with path.open("w") as file:
        file.write("x" * 1000)
        file.flush()
        if synced:
            os.fsync(file.fileno())
    return path


def sync_names() -> None:
    directory = os.open(DISK, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def lose() -> None:
    DISK.mkdir()
    write("synced", synced=True)
    write("renamed-and-synced.new", synced=True).rename(DISK / "renamed-and-synced")
    write("renamed.new", synced=True)
    sync_names()
    # The kernel has not written any of these when the power fails.
    (DISK / "renamed.new").rename(DISK / "renamed")
    write("written", synced=False)
    with Monitor() as monitor:
        monitor.power_off()


if __name__ == "__main__":
    if sys.argv[1:] == ["lose"]:
        lose()
    print(*sorted(f"{path.name}:{path.stat().st_size}" for path in DISK.iterdir() if path.is_file()))
