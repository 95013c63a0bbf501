"""The owner of a device, also on a node with many attachments."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import pci

from base.kernel import sysfs
from base.protocol.spec import Key
from base.state import journal, owned
from base.state.pod import Identity
from base.state.record import Record

VFS = tuple(f"0000:3b:{n // 8:02x}.{n % 8}" for n in range(8, 108))


@pytest.fixture(autouse=True)
def vfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in VFS:
        pci.function(tmp_path / "sys", address)
    pci.is_sys(tmp_path / "sys", monkeypatch)


def attached(state: Path, number: int, netdev: str = "", **members: Any) -> Record:
    """That VF's attachment, on disk."""
    link = {
        "device": VFS[number],
        "incarnation": sysfs.incarnation(VFS[number]),
        "netdev": netdev or f"rail0v{number}",
        "home": {"altnames": [f"enp59s{number}"]},
    }
    key = Key(f"c{number}", "hpn0")
    record = Record("rail0", key, "/run/netns/p", Identity(1, 2), kind="sriov", link=link, config={})
    record = replace(record, **members)
    with journal.lock(state, record.network, record.key) as entry:
        entry.save(record)
    return record


def decoded(work: Callable[[], object]) -> int:
    """The number of JSON documents decoded meanwhile, by the interpreter's count of the calls."""
    calls = 0

    def count(frame: Any, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is json.loads.__code__

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_whose_it_is(tmp_path: Path) -> None:
    """By its bus address, or by the host's names for it, which /sys does not resolve while a pod has it."""
    record = attached(tmp_path, 1)
    attached(tmp_path, 2)
    for name in (VFS[1], "rail0v1", "enp59s1"):
        assert owned.owner(tmp_path, name) == record
    assert owned.owner(tmp_path, VFS[3]) is owned.owner(tmp_path, "") is None


@pytest.mark.parametrize("name", ['a"b', "a\\b", "ra\udcc3\udca4il", "\u20ac"])
def test_a_name_of_any_bytes(tmp_path: Path, name: str) -> None:
    """The kernel refuses few names of interfaces, and a record has some of their bytes as escapes."""
    assert owned.owner(tmp_path, name) is None
    assert attached(tmp_path, 1, name) == owned.owner(tmp_path, name)


def test_named_by_what_has_another_device(tmp_path: Path) -> None:
    attached(tmp_path, 1, config={"master": VFS[2], "device": VFS[2]})
    assert owned.owner(tmp_path, VFS[2]) is None


def test_a_device_of_an_older_boot(tmp_path: Path) -> None:
    attached(tmp_path, 1, boot="00000000-0000-0000-0000-000000000000")
    assert owned.owner(tmp_path, VFS[1]) is None
    assert owned.use(tmp_path, VFS).devices == {}


def test_among_some(tmp_path: Path) -> None:
    records = {VFS[n]: attached(tmp_path, n) for n in range(100)}
    assert owned.devices(tmp_path) == records
    some = (VFS[7], VFS[50])
    assert owned.use(tmp_path, some).devices == {name: records[name] for name in some}


def test_others_are_not_decoded(tmp_path: Path) -> None:
    """An ADD looks up its device's owner, and a node has a thousand attachments."""
    for n in range(100):
        attached(tmp_path, n)
    assert decoded(lambda: owned.devices(tmp_path)) == 100
    assert decoded(lambda: owned.owner(tmp_path, VFS[3])) == 1
    assert decoded(lambda: owned.use(tmp_path, VFS[:8])) == 8
    # Claims also have names of interfaces.
    assert decoded(lambda: owned.use(tmp_path, (VFS[3], "rail0"))) == 1
    assert decoded(lambda: owned.use(tmp_path, ())) == 0


def test_without_a_state_directory(tmp_path: Path) -> None:
    """A missing one has nothing, and without one only claims count."""
    gone = tmp_path / "gone"
    attached(tmp_path, 1)
    assert owned.devices(gone) == owned.use(gone, VFS).devices == owned.use(None, VFS).devices == {}
    assert owned.owner(gone, VFS[1]) is None


def test_what_has_an_interface_below_it(tmp_path: Path) -> None:
    """Not one of the pod's own with the same index by chance, nor one of an older boot."""
    state = tmp_path / "state"
    record = over(state, 1, {"parent": 7})
    over(state, 2, {"parent": 8, "in_container": True})
    over(state, 3, {"parent": 9}, boot="00000000-0000-0000-0000-000000000000")
    over(state, 4, {"parent": 77})
    use = owned.use(state, VFS[:1])
    assert [[*use.attached_over(index)] for index in (7, 8, 9, 10)] == [[record], [], [], []]
    assert use.devices == {}


def over(state: Path, number: int, link: dict[str, Any], **members: Any) -> Record:
    """An attachment with an interface over one of the host's, on disk."""
    record = Record("rail0", Key(f"c{number}", "hpn0"), "/n", Identity(1, 2), kind="macvlan", link=link, config={})
    record = replace(record, **members)
    with journal.lock(state, record.network, record.key) as entry:
        entry.save(record)
    return record
