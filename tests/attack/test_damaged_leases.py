"""With randomly damaged files, the IPAM allocates no address twice, and neither hangs nor prints a traceback.

The witness is the test's own table of all allocated addresses without a release.
"""

import faulthandler
import io
import json
import os
import random
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import drawn
from support.disks import mounted
from support.ipam_calls import Net

from ctl.main import main

# The longest time that a call may take, in seconds.
MOST = 10.0
IPAM = {"ranges": [[{"subnet": "10.0.0.0/26"}], [{"subnet": "fd00::/64"}]]}
LONG = "K8S_POD_NAMESPACE=" + "n" * 250 + ";K8S_POD_NAME=" + "p" * 60
FILES = ("leases", "index", "ranges", "lock", "quarantine")
NO_FILES = ("directory", "fifo", "link", "device", "socket", "gone")

Holders = dict[str, set[str]]
# A file with holes: its size, and its parts with data.
Sparse = tuple[int, list[tuple[int, bytes]]]


@contextmanager
def soon() -> Iterator[None]:
    """Fail if the context takes too long."""

    def late(_signal: int, _frame: object) -> None:
        faulthandler.dump_traceback(sys.__stderr__)
        raise AssertionError(f"it took longer than {MOST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, MOST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Store:
    """A network's files at several moments with the owners of that time, and their present state."""

    def __init__(self, folder: Path) -> None:
        self.net = Net(folder, IPAM)
        self.alive: Holders = {}
        self.moments = list[tuple[dict[str, tuple[bytes | Sparse, os.stat_result]], Holders]]()
        for n in range(12):
            self.alive[f"c{n}"] = set(self.net.add(f"c{n}", args=LONG if n % 5 == 4 else ""))
            if n % 3 == 2:
                gone = f"c{n - 1}"
                assert self.net.call("DEL", gone) == {}
                del self.alive[gone]
            self.moments.append(({f: self._read(f) for f in FILES[:4]}, dict(self.alive)))

    def _read(self, name: str) -> tuple[bytes | Sparse, os.stat_result]:
        path = self.net.dir / name
        return path.read_bytes()[: 1 << 16] if name != "index" else _sparse(path), path.stat()

    def restored(self) -> None:
        """Restore the last moment in place, so that the inodes stay the same."""
        files, alive = self.moments[-1]
        self.alive = {key: set(held) for key, held in alive.items()}
        for path in self.net.dir.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in files or not stat.S_ISREG(path.lstat().st_mode):
                path.unlink()
        inode = (self.net.dir / "leases").stat().st_ino if (self.net.dir / "leases").exists() else 0
        for name, (content, was) in files.items():
            self.put(name, content, was)
        now = (self.net.dir / "leases").stat()
        if now.st_ino != inode or now.st_ino != files["leases"][1].st_ino:
            self.net.reply("STATUS")  # this rebuilds the index
            self.moments[-1] = ({f: self._read(f) for f in FILES[:4]}, alive)

    def put(self, name: str, content: bytes | Sparse, was: os.stat_result | None) -> None:
        size, parts = content if isinstance(content, tuple) else (len(content), [(0, content)])
        path = self.net.dir / name
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, 0)
            os.ftruncate(fd, size)
            for at, data in parts:
                os.pwrite(fd, data, at)
        finally:
            os.close(fd)
        if was:
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def _sparse(path: Path) -> Sparse:
    with open(path, "rb") as file:
        fd = file.fileno()
        return os.fstat(fd).st_size, [(start, os.pread(fd, end - start, start)) for start, end in _written(fd)]


def _used(fd: int, chance: random.Random) -> int:
    """A random position with data; an index consists mostly of holes."""
    places = list(_written(fd))
    if not places:
        return 0
    start, end = chance.choice(places)
    return chance.randrange(start, end)


def _written(fd: int) -> Iterator[tuple[int, int]]:
    """The start and end of each part with data (man 2 lseek)."""
    size, at = os.fstat(fd).st_size, 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole follows
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def damage(store: Store, chance: random.Random) -> str:
    """Apply one random damage, and return its description."""
    name = chance.choice(("leases", "leases", "index", "index", "ranges", "lock", "quarantine"))
    kinds = [*BYTES, "bits", "old", "no file", *(("lines", "line") if name == "leases" else ())]
    kind = "no file" if name == "quarantine" else chance.choice(kinds)
    path = store.net.dir / name
    if kind == "no file":
        return f"{name}: {_no_file(path, chance)}"
    was, keep = path.stat(), chance.random() < 0.5
    old, before = chance.choice(store.moments[:-1])[0][name]
    if kind == "old":
        # An old copy with its index and its times is as consistent as the present file, so no check can detect it.
        store.put(name, old, before if keep else None)
        return f"{name}: an old copy, times {keep}"
    fd = os.open(path, os.O_RDWR)
    try:
        at = _used(fd, chance)
        if kind in BYTES:
            BYTES[kind](fd, at, chance)
        else:
            _lines(fd, os.pread(fd, 1 << 16, 0) if kind == "lines" else old, chance)
    finally:
        os.close(fd)
    if keep:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    return f"{name}: {kind} at {at}, times {keep}"


def _bits(fd: int, at: int, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 3, 20))):
        (byte,) = os.pread(fd, 1, at) or b"\0"
        os.pwrite(fd, bytes([byte ^ (1 << chance.randrange(8))]), at)
        at = _used(fd, chance)


def _zeros(fd: int, at: int, chance: random.Random) -> None:
    unit = chance.choice((4, 256, 512, 4096))
    os.pwrite(fd, bytes(unit), at // unit * unit)


BYTES: dict[str, Callable[[int, int, random.Random], object]] = {
    "bits": _bits,
    "zeros": _zeros,
    "cut": lambda fd, at, chance: os.ftruncate(fd, chance.choice((0, at, at, at // 512 * 512, at // 4096 * 4096))),
    "garbage": lambda fd, _, chance: os.pwrite(fd, chance.randbytes(chance.randrange(5000)), os.fstat(fd).st_size),
    "noise": lambda fd, at, chance: os.pwrite(fd, chance.randbytes(chance.choice((4, 64, 512))), at),
}  # fmt: skip


def _lines(fd: int, source: bytes, chance: random.Random) -> None:
    """Swap two lines, or restore an old one."""
    one, other = (chance.randrange(14) * 512 for _ in "12")
    now = os.pread(fd, 512, one)
    if source[: 1 << 16] == os.pread(fd, 1 << 16, 0):
        os.pwrite(fd, source[other : other + 512], one)
        os.pwrite(fd, now, other)
    else:
        os.pwrite(fd, source[one : one + 512], one)


def _no_file(path: Path, chance: random.Random) -> str:
    kind = chance.choice(NO_FILES)
    if path.exists():
        path.unlink()
    match kind:
        case "directory":
            path.mkdir()
            (path / "file").touch()
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/proc/self/mem")
        case "device":
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, chance.choice((3, 5))))
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
    return kind


def answered(store: Store, command: str, cid: str = "", **more: Any) -> dict[str, Any]:
    with soon():
        reply = store.net.reply(command, cid, **more)
    answer = json.loads(reply.stdout or "{}")
    assert answer.get("code") != 999, (answer, reply.log)
    assert not any("Traceback" in line for line in reply.log), reply.log
    return dict(answer)


def given(store: Store, cid: str, **more: Any) -> None:
    """Run an ADD, and assert that no other pod owns its addresses."""
    answer = answered(store, "ADD", cid, **more)
    if "ips" in answer:
        ips = {ip["address"].partition("/")[0] for ip in answer["ips"]}
        others = {ip: other for other, held in store.alive.items() for ip in held if other != cid}
        twice = {ip: others[ip] for ip in ips if ip in others}
        assert not twice, f"{cid} was given what others have: {twice}"
        # A live pod that repeats ADD may get other addresses, as long as no other pod gets its first ones.
        store.alive[cid] = store.alive.get(cid, set()) | ips


def shown(store: Store, *words: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with soon(), redirect_stdout(out), redirect_stderr(err):
        main(["hpn", "ipam", *words, "--data-dir", str(store.net.state / "ipam")])
    assert "Traceback" not in err.getvalue()


def used(store: Store, chance: random.Random) -> None:
    """Run every command in random order."""

    def delete() -> None:
        cid = chance.choice([*store.alive])
        # The runtime removes the interface before the release; code 108 reports that the addresses are released.
        if answered(store, "DEL", cid).get("code") in (None, 108):
            store.alive.pop(cid)

    def collect() -> None:
        valid = [{"containerID": cid, "ifname": "net1"} for cid in store.alive]
        answered(store, "GC", **({"cni.dev/valid-attachments": valid} if chance.random() < 0.7 else {}))

    def requested() -> None:
        anothers = chance.choice(sorted(chance.choice([*store.alive.values()])))
        given(store, f"n{chance.randrange(1000)}", args=f"IP={anothers}")

    todo = [
        lambda: given(store, f"n{chance.randrange(1000)}"),
        lambda: given(store, chance.choice([*store.alive])),
        requested,
        delete,
        collect,
        lambda: answered(store, "CHECK", chance.choice([*store.alive])) and None,
        lambda: shown(store, chance.choice(("show", "verify", "lease"))),
    ]
    chance.shuffle(todo)
    for work in todo:
        work()
    for n in range(3):
        given(store, f"last{n}")


def test_no_address_is_given_twice(tmp_path: Path) -> None:
    with mounted(tmp_path / "memory", "64m") as memory:
        store = Store(memory / "state")
        for n in range(drawn.count(10_000, "damages")):
            chance = random.Random(f"{drawn.seed()} {n}")
            store.restored()
            what = damage(store, chance)
            try:
                used(store, chance)
            except Exception as e:
                e.add_note(f"number {n}: {what}")
                raise
