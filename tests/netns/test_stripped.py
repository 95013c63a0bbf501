"""DEL with less configuration than ADD: Multus strips all keys except the types from a configuration in a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.topology import Host, Pod, leases

from ctl.main import main


def stripped(conf: dict[str, Any]) -> dict[str, Any]:
    """The configuration as Multus 4.3 sends it."""
    return {"cniVersion": conf["cniVersion"], "name": conf["name"], "type": "hpn", "ipam": {"type": "hpn-ipam"}}


def own_leases(host: Host) -> dict[str, Any]:
    """A configuration with its own directory for the leases."""
    conf = host.conf()
    return conf | {"ipam": conf["ipam"] | {"dataDir": str(host.tmp_path / "data")}}


def test_a_stripped_del_finds_the_attachment(host: Host, make_pod: Callable[[], Pod]) -> None:
    conf, pods = own_leases(host), [make_pod(), make_pod()]
    for pod in pods:
        host.ok("ADD", pod, conf)
    host.ok("DEL", pods[0], stripped(conf))
    assert [pod.links() for pod in pods] == [set(), {"hpn0"}]
    assert [lease["containerID"] for lease in leases(host.tmp_path / "data")] == [pods[1].name]
    host.ok("DEL", pods[1], stripped(conf))
    assert host.state_files() == set()
    assert leases(host.tmp_path / "data") == []


def test_another_interface_of_the_pod_stays(host: Host, pod: Pod) -> None:
    conf = own_leases(host)
    host.ok("ADD", pod, conf)
    host.ok("ADD", pod, conf, CNI_IFNAME="hpn1")
    host.ok("DEL", pod, stripped(conf), CNI_IFNAME="hpn1")
    assert pod.links() == {"hpn0"}
    host.ok("DEL", pod, conf)


def of_an_earlier_version(host: Host, pod: Pod, directory: Path) -> dict[str, Any]:
    """Attach the pod as an earlier version did with this stateDir; return the configuration."""
    default, host.state = host.state, directory
    host.ok("ADD", pod)
    conf = host.conf(stateDir=f"{directory}")
    host.rewrite(host.record(pod), config=conf)
    host.state = default
    return conf


def test_a_record_of_an_earlier_version(host: Host, pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """Its configuration may name the default directory.  Its leases are beside the journal then."""
    conf = of_an_earlier_version(host, pod, host.state)
    assert main(["hpn", "check"]) == 0
    assert main(["hpn", "list"]) == 0
    assert capsys.readouterr().out.count(pod.name[:12]) == 2
    host.ok("DEL", pod, conf)
    assert (pod.links(), host.leases(), host.state_files()) == (set(), set(), set())


def test_a_record_below_another_directory(host: Host, pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    """DEL of such a pod succeeds, and hpn repair undoes the rest, as the page of the upgrade says."""
    old = host.tmp_path / "old"
    conf = of_an_earlier_version(host, pod, old)
    host.ok("DEL", pod, conf)
    assert leases(old / "ipam") == []
    pod.gone()
    assert len(list((old / "attachments").rglob("*.json"))) == 1
    assert main(["hpn", "repair", "--state-dir", f"{old}"]) == 0, capsys.readouterr()
    assert list((old / "attachments").rglob("*.json")) == []
