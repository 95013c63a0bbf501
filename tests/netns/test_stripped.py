"""DEL with less configuration than ADD: Multus strips all keys except the types from a configuration in a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.topology import Host, Pod, leases

from base.protocol import location
from base.state import places


@pytest.fixture(autouse=True)
def default_place(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default state directory, replaced by one of the test."""
    monkeypatch.setattr(location, "STATE_DIR", f"{host.tmp_path}/default")


def stripped(conf: dict[str, Any]) -> dict[str, Any]:
    """The configuration as Multus 4.3 sends it."""
    return {"cniVersion": conf["cniVersion"], "name": conf["name"], "type": "hpn", "ipam": {"type": "hpn-ipam"}}


def own_places(host: Host) -> dict[str, Any]:
    """A configuration with its own directories for the journal and the leases."""
    conf = host.conf(stateDir=str(host.tmp_path / "own"))
    return conf | {"ipam": conf["ipam"] | {"dataDir": str(host.tmp_path / "data")}}


def test_a_stripped_del_finds_the_attachment(host: Host, make_pod: Callable[[], Pod]) -> None:
    conf, pods = own_places(host), [make_pod(), make_pod()]
    for pod in pods:
        host.ok("ADD", pod, conf)
    host.ok("DEL", pods[0], stripped(conf))
    assert [pod.links() for pod in pods] == [set(), {"hpn0"}]
    assert [lease["containerID"] for lease in leases(host.tmp_path / "data")] == [pods[1].name]
    assert notes() == [str(host.tmp_path / "own")]
    host.ok("DEL", pods[1], stripped(conf))
    assert list((host.tmp_path / "own" / "attachments" / "rail0").iterdir()) == []
    assert (leases(host.tmp_path / "data"), notes()) == ([], [])


def test_another_interface_of_the_pod_stays(host: Host, pod: Pod) -> None:
    conf = own_places(host)
    host.ok("ADD", pod, conf)
    host.ok("ADD", pod, conf, CNI_IFNAME="hpn1")
    host.ok("DEL", pod, stripped(conf), CNI_IFNAME="hpn1")
    assert pod.links() == {"hpn0"}
    host.ok("DEL", pod, conf)
    assert notes() == []


def test_the_state_directory_is_another_now(host: Host, pod: Pod) -> None:
    """DEL finds the attachment after the administrator changed the state directory while pods ran."""
    host.ok("ADD", pod, own_places(host))
    host.ok("DEL", pod, host.conf())
    assert (pod.links(), notes()) == (set(), [])


def test_a_failed_add_leaves_no_note(host: Host, pod: Pod) -> None:
    conf = own_places(host) | {"ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "rangeStart": "10.56.0.9"}}
    for ifname in ("hpn0", "hpn1"):
        host.call("ADD", pod, conf | {"ipam": conf["ipam"] | {"rangeEnd": "10.56.0.9"}}, CNI_IFNAME=ifname)
    assert (pod.links(), len(notes())) == ({"hpn0"}, 1)


def test_a_note_of_an_add_that_was_killed(host: Host, pod: Pod) -> None:
    """A killed ADD leaves a note without a record, which later commands of that attachment ignore."""
    conf = own_places(host)
    host.ok("ADD", pod, conf)
    record = next((host.tmp_path / "own").rglob("*:hpn0.json"))
    host.ok("DEL", pod, conf)
    places.note(Path("/nowhere"), "rail0", places.Key(pod.name, "hpn0"))
    host.ok("ADD", pod, conf)
    assert record.exists()
    host.ok("DEL", pod, stripped(conf))
    assert (pod.links(), notes()) == (set(), [])


def notes() -> list[str]:
    return list(map(str, places.state_dirs()[1:]))
