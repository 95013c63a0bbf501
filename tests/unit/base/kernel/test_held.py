"""The mounts and files that can hold a namespace; tests/netns uses real ones."""

import os
from pathlib import Path

import pytest

from base.kernel import holders

NUMBER = 4026532999
ROOT = ("/", "/", "ext4")


def mountinfo(*mounts: tuple[str, str, str]) -> bytes:
    """Lines of mounts, each given by its root, its mount point and its file system."""
    lines = [
        f"{number} 20 0:{number} {root} {point} rw,nosuid shared:{number} - {kind} source rw"
        for number, (root, point, kind) in enumerate(mounts, 30)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def at(point: str, number: int = NUMBER) -> tuple[str, str, str]:
    return (f"net:[{number}]", point, "nsfs")


@pytest.mark.parametrize("ours", [True, False])
def test_kernel_file_systems_lead_there(ours: bool) -> None:
    text = mountinfo(ROOT, ("/", "/run", "tmpfs"), at("/run/netns/a"), at("/run/netns/b", 7), at("/tmp/x"))
    assert holders.mount_points(text, NUMBER, ours=ours) == ["/run/netns/a", "/tmp/x"]


@pytest.mark.parametrize("kind", ["fuse", "fuse.sshfs", "fuseblk", "nfs", "nfs4", "cifs", "9p", "ceph", "virtiofs"])
@pytest.mark.parametrize(
    "mounts",
    [
        [ROOT, ("/", "/mnt", "KIND"), at("/mnt/x")],
        [ROOT, ("/", "/mnt", "KIND"), ("/", "/mnt/a", "tmpfs"), at("/mnt/a/x")],
        [ROOT, at("/mnt/a/x"), ("/", "/mnt", "KIND")],
        [ROOT, at("/mnt/x"), ("/", "/mnt/x", "KIND")],
        [("/", "/", "KIND"), ("/", "/run", "tmpfs"), at("/run/x")],
    ],
    ids=["below it", "below a mount in it", "under it", "at its place", "the root"],
)
def test_a_file_system_that_somebody_serves_is_not_asked(kind: str, mounts: list[tuple[str, str, str]]) -> None:
    text = mountinfo(*((root, point, has.replace("KIND", kind)) for root, point, has in mounts), at("/mn"))
    for ours in (True, False):
        assert holders.mount_points(text, NUMBER, ours=ours) == (["/mn"] if mounts[0] == ROOT else [])


def test_what_may_be_over_another_is_a_containers_root_alone() -> None:
    """In its own user namespace, a pod can make an overlay over a FUSE of its own, which nobody else sees."""
    text = mountinfo(("/", "/", "overlay"), at("/run/x"))
    assert holders.mount_points(text, NUMBER, ours=True) == ["/run/x"]
    assert holders.mount_points(text, NUMBER, ours=False) == []


def test_a_root_that_is_no_mount() -> None:
    """The kernel hides mounts that the process cannot reach, even the one that contains its root."""
    text = mountinfo(at("/x"))
    assert holders.mount_points(text, NUMBER, ours=True) == ["/x"]
    assert holders.mount_points(text, NUMBER, ours=False) == []


@pytest.mark.parametrize("name", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\xa0", "\ufffd"])
def test_a_mount_point_of_strange_letters(name: str) -> None:
    """They end neither the line nor the field."""
    text = mountinfo(ROOT, ("/", f"/mnt{name}", "fuse"), at(f"/mnt{name}/x"), at("/run/x"))
    assert holders.mount_points(text, NUMBER, ours=False) == ["/run/x"]


def test_a_file_with_its_number_is_not_the_namespace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, is_so in (("/proc/self/ns/net", True), (f"{tmp_path}/fifo", False)):
        fd = os.open(path, os.O_PATH)
        try:
            assert holders._is_namespace(fd, os.fstat(fd).st_ino) is is_so
            assert not holders._is_namespace(fd, os.fstat(fd).st_ino + 1)
        finally:
            os.close(fd)
