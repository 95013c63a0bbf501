"""A local user without privileges: root waits for nothing they lock, and trusts nothing they made."""

import contextlib
import ctypes
import fcntl
import itertools
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attack.user import NOBODY, flocked, nobody
from topology import Host, Pod, until

from cni.parts import program
from cni.protocol.errors import IoFailure, TryAgain
from cni.state import durable, journal, trust
from cni.state.locks import Lock
from ipam import migrate
from ipam.stores.files import store as stores

PR_SET_NAME = 15
SLOW = 10.0  # seconds, that no call takes
_numbers = itertools.count()


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory of root's that everybody can reach, in /tmp: what pytest gives nobody else can."""
    folder = Path(f"/tmp/hpn-test-{os.getpid()}-{next(_numbers)}")
    folder.mkdir()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 2 * SLOW


def kept_in(host: Host, folder: Path, **keys: Any) -> dict[str, Any]:
    return host.conf(stateDir=str(folder), **keys)


def test_locks(host: Host, make_pod: Callable[[], Pod], public: Path) -> None:
    """They lock all that they can open; nobody waits."""
    host.state = public / "hpn"
    one, two = make_pod(), make_pod()
    host.ok("ADD", one)
    with nobody(lambda: flocked(public)) as taken:
        assert taken[0] == str(public)
        started = time.monotonic()
        host.ok("ADD", two)
        host.ok("STATUS", None)
        for pod in (one, two):
            host.ok("DEL", pod)
        host.ok("GC", None, host.conf() | {"cni.dev/valid-attachments": []})
        assert time.monotonic() - started < SLOW
    assert [path for path in taken if path.startswith(str(host.state))] == [str(host.state)] * (len(taken) - 1)


def test_what_we_make_is_ours_alone(host: Host, pod: Pod, public: Path) -> None:
    """Whatever umask the runtime has."""
    before = os.umask(0)
    try:
        host.state = public / "a/hpn"
        host.ok("ADD", pod)
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.lstat().st_mode) for p in (public / "a", *(public / "a").rglob("*"))}
    assert {p: f"{mode:o}" for p, mode in modes.items() if mode != (0o700 if p.is_dir() else 0o600)} == {}
    host.ok("DEL", pod)


def of_theirs(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)


def with_a_group(folder: Path) -> None:
    folder.chmod(0o775)


def of_everybody(folder: Path) -> None:
    folder.chmod(0o777)


def by_their_link(folder: Path) -> None:
    folder.chmod(0o1777)
    target = folder / "target"
    target.mkdir()
    with nobody(lambda: (folder / "hpn").symlink_to(target)):
        pass


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("make", [of_theirs, with_a_group, of_everybody, by_their_link])
@pytest.mark.parametrize("key", ["stateDir", "dataDir"])
def test_a_parent_that_others_can_change(
    host: Host, pod: Pod, public: Path, make: Callable[[Path], None], key: str, deep: bool
) -> None:
    """Named, with what to do; nothing is made in there, and nothing that is there is believed."""
    make(public)
    before = sorted(public.rglob("*"))
    folder = public / "hpn" / "deep" if deep else public / "hpn"
    conf = kept_in(host, folder) if key == "stateDir" else host.conf()
    conf["ipam"] |= {"dataDir": str(folder)} if key == "dataDir" else {}
    wrong = public / "hpn" if make is by_their_link else public
    for command in ("ADD", "STATUS"):
        error = host.refused(command, pod, conf)
        assert error["code"] == (50 if command == "STATUS" and key == "stateDir" else 7), error
        assert f"others than root can change {wrong} " in error["msg"]
        assert f"chown root:root {wrong}; chmod go-w {wrong}" in error["msg"]
    assert sorted(public.rglob("*")) == before
    assert (pod.links(), host.state_files()) == (set(), set())


def test_state_that_they_prepared(host: Host, pod: Pod, public: Path) -> None:
    """Locks that they hold, in directories of theirs: refused at once, not waited for."""
    of_theirs(public)

    def prepare() -> list[str]:
        locks = public / "hpn" / "locks"
        locks.mkdir(parents=True)
        for n in range(64):
            (locks / f"attachment-{n}").touch(0o666)
        return flocked(locks)

    with nobody(prepare) as taken:
        assert len(taken) == 65
        started = time.monotonic()
        for command in ("ADD", "DEL"):
            assert host.refused(command, pod, kept_in(host, public / "hpn"))["code"] == 7
        assert time.monotonic() - started < 1


def test_a_parent_that_changes_hands_later(host: Host, make_pod: Callable[[], Pod], public: Path) -> None:
    """A process that found it good once looks again when another directory is in its place."""
    folder = public / "hpn"
    host.ok("ADD", make_pod(), kept_in(host, folder))
    of_everybody(public)

    def put_another() -> None:
        folder.rename(public / "aside")
        (folder / "locks").mkdir(0o700, parents=True)

    with nobody(put_another):
        pass
    assert host.refused("ADD", make_pod(), kept_in(host, folder))["code"] == 7
    shutil.rmtree(folder)
    (public / "aside").rename(folder)
    public.chmod(0o755)
    host.ok("GC", None, kept_in(host, folder) | {"cni.dev/valid-attachments": []})


def test_a_sticky_directory(host: Host, pod: Pod, public: Path) -> None:
    """As /tmp: nobody can take from there what root made."""
    public.chmod(0o1777)
    host.state = public / "hpn"
    result = host.ok("ADD", pod)
    assert host.checked(pod, host.conf(), result).exit_code == 0
    host.ok("DEL", pod)


def test_a_directory_of_another_purpose(host: Host, pod: Pod, public: Path) -> None:
    """No network's name makes our files appear among others': sudoers.d, cron.d."""
    (public / "rail0").mkdir()
    (public / "locks").mkdir()
    leases, state = host.conf(), kept_in(host, public)
    leases["ipam"]["dataDir"] = str(public)
    for conf in (leases, state):
        error = host.refused("ADD", pod, conf)
        assert (error["code"], "chmod 700" in error["msg"]) == (7, True)
    assert [p for p in public.rglob("*") if not p.is_dir()] == []


@pytest.mark.parametrize("link", [False, True])
def test_the_administrators_own_links(host: Host, pod: Pod, public: Path, link: bool) -> None:
    """/var/run is one."""
    (public / "run").mkdir()
    (public / "var").mkdir()
    (public / "var" / "run").symlink_to("../run" if link else f"{public}/run")
    host.state = public / "var/run/hpn"
    host.ok("ADD", pod)
    host.ok("DEL", pod)
    assert (public / "run/hpn/locks").is_dir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


def device(path: Path) -> None:
    os.mknod(path, 0o20600, os.makedev(1, 5))


def folder(path: Path) -> None:
    path.mkdir()


def theirs(path: Path) -> None:
    path.touch()
    os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("make", [fifo, link, device, folder, theirs])
def test_what_is_no_lock(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = durable.directory(tmp_path / "s") / "lock"
    make(path)
    started = time.monotonic()
    with pytest.raises((IoFailure, OSError)) as e:
        Lock(str(path), 1)
    assert str(path) in str(e.value)
    assert time.monotonic() - started < 0.5
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("make", [fifo, link, device, folder, theirs])
@pytest.mark.parametrize("where", ["locks/attachment-{n}", "ipam/rail0/lock"])
def test_a_command_that_finds_no_lock(host: Host, pod: Pod, where: str, make: Callable[[Path], None]) -> None:
    """Error 5 with its name; and again when it is gone all is well."""
    host.ok("ADD", pod)
    (held,) = (host.state / "locks").glob("attachment-*")
    path = host.state / where.format(n=held.name.rpartition("-")[2])
    path.unlink()
    make(path)
    error = host.refused("DEL", pod)
    assert (error["code"], str(path) in error["msg"]) == (5, True)
    path.rmdir() if make is folder else path.unlink()
    host.ok("DEL", pod)


def test_a_lock_that_others_can_open(tmp_path: Path) -> None:
    """Put right, though not taken from who has it open."""
    path = durable.directory(tmp_path / "s") / "lock"
    path.touch()
    path.chmod(0o644)
    with Lock(str(path), 1):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("what", ["attachment", "store"])
def test_a_lock_that_somebody_holds(
    host: Host, pod: Pod, public: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Who has a descriptor of one from when they could: bounded, and named, whatever they call themselves."""
    host.state = public / "hpn"
    host.ok("ADD", pod)
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.3)
    monkeypatch.setattr(stores.FileStore.__init__, "__defaults__", (lambda _: (), 0.3))
    (lock,) = (host.state / "locks").glob("attachment-*") if what == "attachment" else [host.state / "ipam/rail0/lock"]
    opened = os.open(lock, os.O_RDONLY)

    def hold() -> int:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b'x"\n\\')
        fcntl.flock(opened, fcntl.LOCK_EX)
        return os.getpid()

    with nobody(hold) as pid:
        os.close(opened)
        error = host.refused("DEL", pod)
    assert (error["code"], str(lock) in error["msg"], f"process {pid} (" in error["msg"]) == (11, True, True), error
    assert "\n" not in error["msg"]
    host.ok("DEL", pod)


def test_a_lock_of_host_locals(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose directory is for everybody to read: its import does not wait for ever either."""
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", 0.3)
    (public / "lock").touch()
    with nobody(lambda: flocked(public)) as taken:
        assert str(public / "lock") in taken
        with pytest.raises(TryAgain, match="held by process"), migrate.host_local_locked(public):
            pass


def test_a_namespace_that_is_none(host: Host, pod: Pod, public: Path) -> None:
    os.mkfifo(public / "netns")
    started = time.monotonic()
    for command in ("ADD", "DEL"):
        host.call(command, pod, CNI_NETNS=str(public / "netns"))
    assert time.monotonic() - started < SLOW
    assert (pod.links(), host.state_files()) == (set(), set())


def test_the_bounds() -> None:
    """docs/security.md says 10 s."""
    assert journal.LOCK_TIMEOUT <= SLOW
    assert stores.LOCK_TIMEOUT <= SLOW


@pytest.mark.parametrize("make", [fifo, link, device, folder])
def test_what_is_no_record(host: Host, pod: Pod, make: Callable[[Path], None]) -> None:
    """Set aside like any other that cannot be read."""
    host.ok("ADD", pod)
    record = host.record(pod)
    record.unlink()
    make(record)
    assert host.refused("DEL", pod)["code"] == 108
    assert len(list((host.state / "quarantine").rglob(f"{record.name}*"))) == 1
    host.call("DEL", pod)
    assert not os.path.lexists(record)


@pytest.mark.parametrize("make", [fifo, link, device, folder])
def test_what_is_no_unfinished_record(host: Host, pod: Pod, make: Callable[[Path], None]) -> None:
    """In the place where one is written: at worst an error, never a wait, and nothing outside is written."""
    host.ok("ADD", pod)
    host.ok("DEL", pod)
    temporary = host.record(pod).with_name(f"{host.record(pod).name}.tmp")
    make(temporary)
    if host.call("ADD", pod).exit_code == 0:
        host.ok("DEL", pod)
    assert not (host.state / "attachments" / "elsewhere").exists()
    if temporary.is_dir():
        temporary.rmdir()


def test_found_good_and_forgotten(tmp_path: Path) -> None:
    """What is known of directories has a bound, for a configuration names them."""
    for n in range(300):
        trust.refuse_unless_ours(str(durable.directory(tmp_path / f"{n}")))
    assert len(trust._good) <= 256


def test_links_without_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        trust.refuse_unless_safe(f"{tmp_path}/a/x")


RESULT = '{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.2/24"}]}'


@pytest.fixture
def plugin(public: Path) -> Path:
    """An IPAM plugin in a directory of CNI_PATH."""
    path = public / "bin" / "theirs"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat >/dev/null; [ $CNI_COMMAND = DEL ] || echo '{RESULT}'\n")
    path.chmod(0o755)
    return path


def asking(host: Host, plugin: Path) -> dict[str, Any]:
    return {"conf": host.conf(ipam={"type": plugin.name}), "CNI_PATH": str(plugin.parent)}


def test_a_plugin_is_run(host: Host, pod: Pod, plugin: Path) -> None:
    """That what is refused below is refused for a reason; a group of root's may write."""
    plugin.chmod(0o775)
    plugin.parent.chmod(0o1777)
    assert host.ok("ADD", pod, **asking(host, plugin))["ips"][0]["address"] == "10.9.0.2/24"
    host.ok("DEL", pod, **asking(host, plugin))


def in_an_open_directory(plugin: Path) -> None:
    plugin.parent.chmod(0o777)


def in_a_groups_directory(plugin: Path) -> None:
    os.chown(plugin.parent, 0, NOBODY)
    plugin.parent.chmod(0o775)


def of_theirs_in_a_sticky_directory(plugin: Path) -> None:
    plugin.parent.chmod(0o1777)
    os.chown(plugin, NOBODY, NOBODY)


def that_they_can_write(plugin: Path) -> None:
    plugin.chmod(0o757)


@pytest.mark.parametrize(
    "make", [in_an_open_directory, in_a_groups_directory, of_theirs_in_a_sticky_directory, that_they_can_write]
)
def test_a_plugin_that_others_could_have_written(
    host: Host, pod: Pod, plugin: Path, make: Callable[[Path], None]
) -> None:
    make(plugin)
    error = host.refused("ADD", pod, **asking(host, plugin))
    assert (error["code"], f" {plugin} is not run: " in error["msg"], "; ch" in error["msg"]) == (106, True, True)
    assert (pod.links(), host.state_files()) == (set(), set())


@pytest.mark.parametrize("binary", [False, True])
def test_a_plugin_that_is_swapped(plugin: Path, binary: bool) -> None:
    """What was looked at is what runs, whatever has the name then."""
    if binary:
        shutil.copy("/bin/echo", plugin)
    fd = program.open_trusted(str(plugin))
    plugin.unlink()
    plugin.write_text("#!/bin/sh\necho swapped\n")
    plugin.chmod(0o755)
    try:
        status, stdout = program.run(fd, str(plugin), b"{}", {"CNI_COMMAND": "ADD", "PATH": os.environ["PATH"]})
    finally:
        os.close(fd)
    assert (status, stdout) == (0, b"\n" if binary else f"{RESULT}\n".encode())


@pytest.mark.parametrize("script", ["sleep 1000", "trap '' TERM; sleep 1000; sleep 1000", "sleep 1000 & exit 0"])
def test_a_plugin_that_hangs(host: Host, pod: Pod, plugin: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Ended with all that it started; ADD is undone, and the lock is free."""
    hangs = f"[ $CNI_COMMAND = DEL ] || {{ {script}; }}"
    plugin.write_text(f"#!/bin/sh\necho $$ >>{plugin}.pids; cat >/dev/null; {hangs}\n")
    monkeypatch.setattr(program, "TIMEOUT", 0.5)
    monkeypatch.setattr(program, "GRACE", 0.5)
    error = host.refused("ADD", pod, **asking(host, plugin))
    assert (error["code"], "did not answer in 0.5 s" in error["msg"]) == (106, True)
    assert (pod.links(), host.state_files()) == (set(), set())
    groups = Path(f"{plugin}.pids").read_text().split()
    until(lambda: not groups_alive(groups))


def groups_alive(groups: list[str]) -> list[str]:
    """The processes, but for zombies, that are of one of these process groups."""
    alive = list[str]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            alive += [path.parent.name] if group in groups and state != "Z" else []
    return alive


def test_the_bound_of_a_plugin() -> None:
    """docs/security.md says 90 s."""
    assert program.TIMEOUT + program.GRACE <= 95
