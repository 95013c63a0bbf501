"""The kernel's list of mounts, with an odd name by a user."""

from base.kernel import netns


def test_mounts() -> None:
    r"""Any bytes except spaces, tabs, line ends and backslashes, which the kernel writes as \ooo."""
    odd = b"/home/u/a\xff\x0c\r\x1c\xe2\x80\xa8b"
    text = b"36 35 98:0 / /mnt rw - ext4 /dev/sda rw\n40 35 0:4 net:[4026532177] /run/netns/a shared:1 - nsfs nsfs rw\n"
    text += b"41 35 0:50 / " + odd + b" rw - fuse.x x rw\n42 35 0:50 / /home/with\\040space rw - fuse.x x rw\n"
    assert list(netns.mounts(text)) == [
        ("/", "/mnt", "ext4"), ("net:[4026532177]", "/run/netns/a", "nsfs"),
        ("/", "/home/u/a\udcff\x0c\r\x1c\u2028b", "fuse.x"), ("/", "/home/with\\040space", "fuse.x"),
    ]  # fmt: skip
