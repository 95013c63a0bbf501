"""A process of a local user without privileges, which keeps its locks and files until it is released."""

import fcntl
import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NOBODY = 65534
SLOW = 10.0  # seconds that no call takes


@contextmanager
def nobody(act: Callable[[], Any]) -> Iterator[Any]:
    """Run ``act`` as that user and yield its result; the process lives until the context ends."""
    answer, told = os.pipe()
    waits, goes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(goes)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(told, json.dumps({"answer": act()}).encode())
            os.close(told)
            os.read(waits, 1)
        except BaseException:  # noqa: BLE001  # nothing of pytest's may run here
            os.write(told, json.dumps({"failed": traceback.format_exc()}).encode())
        finally:
            os._exit(0)
    os.close(told)
    os.close(waits)
    try:
        with open(answer, "rb") as f:
            said = json.loads(f.read())
        assert "failed" not in said, said["failed"]
        yield said["answer"]
    finally:
        os.close(goes)
        os.waitpid(child, 0)


def flocked(folder: Path) -> list[str]:
    """Lock the folder and every file in it that the user can open."""
    taken = list[str]()
    for path in [folder, *reachable(folder)]:
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY):
            try:
                fcntl.flock(os.open(path, flags | os.O_NONBLOCK), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            taken.append(str(path))
            break
    return taken


def reachable(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        yield from (Path(at, name) for name in (*folders, *files))
