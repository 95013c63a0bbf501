"""The cluster tier's stand-in for Multus, followed by the plugin: the effects of a pod author's annotation."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from netns.under_multus import ROOT, World, world
from support.topology import Host, Pod, ip


@pytest.fixture
def node(host: Host, tmp_path: Path) -> Iterator[World]:
    ip("link", "set", "lo", "up")
    with world(tmp_path) as made:
        for name in ("hpn", "hpn-ipam"):
            (made.folder / "bin" / name).write_text(
                f"#!{sys.executable} -B\nimport sys\nsys.path[:0] = [{str(ROOT)!r}]\nsys.argv[0] = {name!r}\n"
                "import runpy\nrunpy.run_module('ctl', run_name='__main__')\n"
            )
            (made.folder / "bin" / name).chmod(0o755)
        made.define("tenant", {"type": "hpn", "kind": "sriov", "vlan": 100, "deviceID": "0000:ff:00.2"})
        made.define("rail0", {"type": "hpn", "master": "rail0"})
        yield made


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"vlan": 200}, "args.cni.vlan 200: this node lets no pod choose vlan"),
        ({"vlan": 0}, "args.cni.vlan 0: this node lets no pod choose vlan"),
        ({"deviceID": "0000:5e:00.7"}, 'args.cni.deviceID "0000:5e:00.7": a pod may not choose deviceID'),
        ({"sticky": "red/web-0"}, "namespace 'default' choose no other namespace's sticky"),
    ],
)
def test_cni_args(node: World, pod: Pod, args: dict[str, Any], says: str) -> None:
    """Multus copies cni-args without regard to the definition.  ADD refuses these, and DEL succeeds."""
    node.annotate([{"name": "tenant", "interface": "hpn0", "cni-args": args}])
    assert says in node.run("ADD", pod)["msg"]
    assert pod.links() == set()
    assert node.run("DEL", pod) is None


def test_a_mac_and_an_mtu_of_the_pods_own(node: World, pod: Pod) -> None:
    """A pod chooses its MAC and MTU, with a definition without capabilities."""
    args = {"mtu": 1400, "labels": [{"key": "app", "value": "x"}]}
    node.annotate([{"name": "rail0", "interface": "hpn0", "mac": "02:00:00:00:00:77", "cni-args": args}])
    assert node.run("ADD", pod)["ips"]
    link = pod.link()
    assert link
    assert (link["address"], link["mtu"]) == ("02:00:00:00:00:77", 1400)
