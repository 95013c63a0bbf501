"""Places for the files of one `make test`: folders for its processes' tests, and the places common to a machine."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reported import Done

# Places common to a machine: hpn's notes and locks, named namespaces, libcni's results.
COMMON = ("/run/hpn", "/run/netns", "/var/lib/cni")


@contextmanager
def in_common_places() -> Iterator[tuple[str, ...]]:
    """Yield the words that run a command with its own empty common places; no words without permission to mount."""
    script = 'for at in $COMMON; do mount -t tmpfs -o mode=755 hpn-tests "$at" || exit; done; exec "$@"'
    script = script.replace("$COMMON", " ".join(COMMON))
    words = ("unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh")
    places = {folder for at in map(Path, COMMON) for folder in (at, *at.parents) if not folder.exists()}
    made = sorted(places, key=lambda folder: len(folder.parts))
    if os.geteuid():
        yield ()
        return
    try:
        for folder in made:
            folder.mkdir()
        tried = subprocess.run([*words, "true"], capture_output=True, check=False)
        yield () if tried.returncode else words
    finally:
        for folder in reversed(made):
            with suppress(OSError):  # something else has come there
                folder.rmdir()


@contextmanager
def on_disk(bad: list[Done]) -> Iterator[Path]:
    """A folder for the tests' own files, which is kept if any run failed."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    try:
        yield folder
    finally:
        if bad:
            print(f"what failed left its files in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def in_memory(disk: Path, bad: list[Done]) -> Iterator[Path | None]:
    """A folder in memory, if this process may mount one.  If any run failed, its files are moved to the disk
    afterwards, under the same names."""
    folder, kept = disk / "m", disk / "kept"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "mode=755", "hpn-tests", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    disk.chmod(0o755)  # some tests run as users other than root
    try:
        yield folder
    finally:
        if bad:
            subprocess.run(["cp", "-a", folder, kept], check=False)
        subprocess.run(["umount", "--lazy", folder], check=True)
        if bad:
            folder.rmdir()
            kept.rename(folder)
