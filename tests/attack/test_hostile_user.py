"""A local user without privileges: root waits for no lock of that user, and trusts no directory of theirs."""

import ctypes
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack.user import NOBODY, SLOW, flocked, nobody
from support.elapsed import Elapsed
from support.topology import Host, Pod

from base.protocol.errors import TryAgain
from base.state import durable, journal, locks, trust
from ipam import migrate
from ipam.stores.files import store as stores

PR_SET_NAME = 15

pytestmark = pytest.mark.usefixtures("in_time")


def kept_in(host: Host, folder: Path, **keys: Any) -> dict[str, Any]:
    host.state = folder
    return host.conf(**keys)


def test_locks(host: Host, make_pod: Callable[[], Pod], public: Path) -> None:
    """Commands do not wait although the user locks all readable files."""
    host.state = public / "hpn"
    one, two = make_pod(), make_pod()
    host.ok("ADD", one)
    with nobody(lambda: flocked(public)) as taken:
        assert taken[0] == str(public)
        elapsed = Elapsed()
        host.ok("ADD", two)
        host.ok("STATUS", None)
        for pod in (one, two):
            host.ok("DEL", pod)
        host.ok("GC", None, host.conf() | {"cni.dev/valid-attachments": []})
        assert elapsed.seconds() < SLOW
    assert [path for path in taken if path.startswith(str(host.state))] == [str(host.state)] * (len(taken) - 1)


def test_what_we_make_is_ours_alone(host: Host, pod: Pod, public: Path) -> None:
    """Only root can read new files and directories, whatever the runtime's umask."""
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
@pytest.mark.parametrize("key", ["HPN_STATE_DIR", "dataDir"])
def test_a_parent_that_others_can_change(
    host: Host, pod: Pod, public: Path, make: Callable[[Path], None], key: str, deep: bool
) -> None:
    """The error names the directory and the remedy; the command creates nothing there and uses nothing from there."""
    make(public)
    before = sorted(public.rglob("*"))
    folder = public / "hpn" / "deep" if deep else public / "hpn"
    conf = kept_in(host, folder) if key == "HPN_STATE_DIR" else host.conf()
    conf["ipam"] |= {"dataDir": str(folder)} if key == "dataDir" else {}
    wrong = public / "hpn" if make is by_their_link else public
    for command in ("ADD", "STATUS"):
        error = host.refused(command, pod, conf)
        assert error["code"] == (50 if command == "STATUS" and key == "HPN_STATE_DIR" else 7), error
        assert f"others than root can change {wrong} " in error["msg"]
        assert f"chown root:root {wrong}; chmod go-w {wrong}" in error["msg"]
    assert sorted(public.rglob("*")) == before
    assert (pod.links(), host.state_files()) == (set(), set())


def test_state_that_they_prepared(host: Host, pod: Pod, public: Path) -> None:
    """The command refuses the user's directories at once, without waiting for the locks that the user holds there."""
    of_theirs(public)

    def prepare() -> list[str]:
        locks = public / "hpn" / "locks"
        locks.mkdir(parents=True)
        for n in range(64):
            (locks / f"attachment-{n}").touch(0o666)
        return flocked(locks)

    with nobody(prepare) as taken:
        assert len(taken) == 65
        for command in ("ADD", "DEL"):
            assert host.refused(command, pod, kept_in(host, public / "hpn"))["code"] == 7


def test_a_parent_that_changes_hands_later(host: Host, make_pod: Callable[[], Pod], public: Path) -> None:
    """A process that trusted a directory checks again after a replacement."""
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
    """A sticky directory such as /tmp is fine: other users cannot remove root's files."""
    public.chmod(0o1777)
    host.state = public / "hpn"
    result = host.ok("ADD", pod)
    assert host.checked(pod, host.conf(), result).exit_code == 0
    host.ok("DEL", pod)


def test_a_directory_of_another_purpose(host: Host, pod: Pod, public: Path) -> None:
    """A network's name never adds files to a directory of another purpose, such as sudoers.d or cron.d."""
    (public / "rail0").mkdir()
    (public / "locks").mkdir()
    leases = host.conf()
    leases["ipam"]["dataDir"] = str(public)
    for folder, conf in ((host.state, leases), (public, host.conf())):
        host.state = folder
        error = host.refused("ADD", pod, conf)
        assert (error["code"], "chmod 700" in error["msg"]) == (7, True)
    assert [p for p in public.rglob("*") if not p.is_dir()] == []


@pytest.mark.parametrize("link", [False, True])
def test_the_administrators_own_links(host: Host, pod: Pod, public: Path, link: bool) -> None:
    """Links of the administrator, such as /var/run, are followed."""
    (public / "run").mkdir()
    (public / "var").mkdir()
    (public / "var" / "run").symlink_to("../run" if link else f"{public}/run")
    host.state = public / "var/run/hpn"
    host.ok("ADD", pod)
    host.ok("DEL", pod)
    assert (public / "run/hpn/locks").is_dir()


@pytest.mark.parametrize("what", ["attachment", "store"])
def test_a_lock_that_somebody_holds(
    host: Host, pod: Pod, public: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A user with an old descriptor holds a lock: the wait is bounded, and the error names the process, whatever its
    name."""
    host.state = public / "hpn"
    host.ok("ADD", pod)
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.3)
    monkeypatch.setattr(stores.FileStore.__init__, "__defaults__", (lambda _: (), 0.3, None))
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
    """The import waits a bounded time for host-local's lock, which every user can open."""
    monkeypatch.setattr(migrate, "LOCK_TIMEOUT", 0.3)
    (public / "lock").touch()
    with nobody(lambda: flocked(public)) as taken:
        assert str(public / "lock") in taken
        with pytest.raises(TryAgain, match="held by process"), migrate.lock_host_local(public):
            pass


def test_a_namespace_that_is_none(host: Host, pod: Pod, public: Path) -> None:
    os.mkfifo(public / "netns")
    elapsed = Elapsed()
    for command in ("ADD", "DEL"):
        host.call(command, pod, CNI_NETNS=str(public / "netns"))
    assert elapsed.seconds() < SLOW
    assert (pod.links(), host.state_files()) == (set(), set())


def test_the_bounds() -> None:
    """docs/user/security.md promises 10 s for an attachment's lock, and 60 s for one that pods take in turn."""
    assert journal.LOCK_TIMEOUT <= SLOW
    assert {locks.SHARED, stores.LOCK_TIMEOUT} == {60.0}


def test_found_good_and_forgotten(tmp_path: Path) -> None:
    """The cache of trusted directories is bounded, because a configuration names them."""
    for n in range(300):
        trust.refuse_unless_ours(str(durable.directory(tmp_path / f"{n}")))
    assert len(trust._good) <= 256
