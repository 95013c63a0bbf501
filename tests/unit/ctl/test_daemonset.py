"""hpn daemonset: its units, and when the DaemonSet has left a node.  tests/system/test_ways.py has the rest."""

import re
from pathlib import Path

import pytest
from support.installed import ROOT, program, tree

from base.protocol.errors import InvalidConfig
from ctl.daemonset import leaving
from ctl.installation import layout
from ctl.installation.command import install, uninstall

KUBELET, PLUGINS = "/var/lib/kubelet", "/opt/cni/bin"


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The units of the source tree."""
    monkeypatch.syspath_prepend(ROOT)


def test_the_arguments_of_hpn_node_are_in_its_unit() -> None:
    arguments = ("--metrics=[::1]:9617", "--kubelet-dir=/var/snap/microk8s/common/var/lib/kubelet")
    units = layout.daemonset_units(arguments, KUBELET, PLUGINS)
    assert f"\nExecStart=/opt/cni/bin/hpn node {' '.join(arguments)}\n" in units[layout.NODE]
    assert layout.node_arguments(units) == arguments
    assert layout.node_arguments(layout.units()) is None
    assert next(iter(units)) == layout.LEAVE


def test_hpn_node_starts_before_every_service_with_a_kubelet() -> None:
    """The page has their names."""
    _, _, rest = (ROOT / "docs" / "user" / "kubernetes.md").read_text().partition("\nThe units start before ")
    named = re.findall(r"`([\w.-]+\.service)`", rest.partition("\n\n")[0])
    texts = layout.units()[layout.NODE].splitlines()
    before = [name for line in texts if line.startswith("Before=") for name in line.removeprefix("Before=").split()]
    assert before == named
    assert {"kubelet.service", "k3s.service", "snap.microk8s.daemon-kubelite.service"} <= set(named)


@pytest.mark.parametrize("argument", ["--metrics=a b", "--metrics=%n", "--metrics=$HOME", '"', "", "--metrics=é"])
def test_what_systemd_would_expand_is_refused(argument: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot be an argument in a unit"):
        layout.daemonset_units((argument,), KUBELET, PLUGINS)
    with pytest.raises(InvalidConfig, match="cannot be an argument in a unit"):
        layout.daemonset_units((), argument, PLUGINS)
    with pytest.raises(InvalidConfig, match="cannot be an argument in a unit"):
        layout.daemonset_units((), KUBELET, argument)


def test_it_leaves_only_where_kubelet_has_pods_of_others_alone(tmp_path: Path) -> None:
    ours, other = (tmp_path / "pods" / name / "volumes/kubernetes.io~empty-dir" for name in ("a", "b"))
    no_pod = [f"hpn stays: {tmp_path}/pods has no pod"]
    assert leaving.leave(tmp_path, 0) == no_pod
    (tmp_path / "pods").mkdir()
    assert leaving.leave(tmp_path, 0) == no_pod
    (other / "data").mkdir(parents=True)
    assert leaving._stays(tmp_path) is None
    (ours / "hpn-way").mkdir(parents=True)
    assert leaving.leave(tmp_path, 0) == []


def test_nothing_is_left_in_other_directories(tmp_path: Path, root: Path) -> None:
    """Of MicroK8s: the runtime's plugins, and kubelet.  The usual ones have files of others."""
    kubelet, plugins = "/var/snap/microk8s/common/var/lib/kubelet", "/var/snap/microk8s/current/opt/cni/bin"
    file = program(tmp_path)
    install(root, file, layout.daemonset_units((), kubelet, plugins), "")
    registry, programs = Path(f"{root}{kubelet}/plugins_registry"), Path(f"{root}{plugins}")
    registry.mkdir(parents=True)
    for name in (".hpn-node.lock", ".hpn-node.json", ".hpn-dra.json"):
        (registry / name).touch()
    programs.mkdir(parents=True)
    (programs / "hpn").write_bytes(file.read_bytes())
    (programs / "hpn-ipam").hardlink_to(programs / "hpn")
    (programs / "macvlan").write_text("theirs")
    (registry / "theirs.sock").touch()
    said = uninstall(root)
    assert tree(root) == {f"{plugins}/macvlan"[1:]: "theirs", f"{kubelet}/plugins_registry/theirs.sock"[1:]: ""}
    assert {f"remove {plugins}/hpn", f"remove {kubelet}/plugins_registry/.hpn-node.lock"} <= set(said)
