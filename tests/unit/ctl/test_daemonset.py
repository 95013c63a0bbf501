"""hpn daemonset: its units, its notes, and when the DaemonSet has left a node.

tests/system/test_modes.py has the rest.
"""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

import pytest
from support.doctor_cases import offering
from support.installed import ROOT, program, tree

from base.kernel import host_mounts
from base.protocol.errors import InvalidConfig
from ctl.daemonset import command, installing, leaving, notes
from ctl.installation import layout, systemd
from ctl.installation.command import install, uninstall

KUBELET, PLUGINS = "/var/lib/kubelet", "/opt/cni/bin"
OURS = "pods/a/volumes/kubernetes.io~empty-dir/hpn-mode"
MASTERS = "{resources: [{name: example.com/rail0, kind: master, selectors: {ifNames: [rail0]}}], PFS}"
DEMANDED = "this node runs hpn in containers, as --mode=container demands"
ALONE = "/opt/cni/bin has no other plugin: if the runtime has another directory for plugins, name that (cniBinDir "
ALONE += "in the chart)"
Said: TypeAlias = Callable[..., tuple[list[str], list[str]]]


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
    (ours / "hpn-mode").mkdir(parents=True)
    assert leaving.leave(tmp_path, 0) == []


@pytest.fixture
def said(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Returns a function that runs hpn daemonset install, and returns its lines and those of the pod's status."""
    status = tmp_path / "status"
    monkeypatch.setattr(installing, "STATUS", status)
    monkeypatch.setattr(installing, "CHOSEN", tmp_path / "none" / "mode")
    monkeypatch.setattr(layout, "DEVICES", str(tmp_path / "devices.yaml"))
    monkeypatch.setattr(installing, "KUBELET", tmp_path / "kubelet")
    monkeypatch.setattr(host_mounts, "enter", lambda: None)
    monkeypatch.setattr(systemd, "runs_here", lambda _: False)

    def run(*options: str) -> tuple[list[str], list[str]]:
        status.write_text("")
        text, code = command.answer(["install", f"--root={root}", *options], str(program(tmp_path)))
        assert code == 0
        return text.splitlines(), status.read_text().splitlines()

    return run


def test_the_status_has_the_way_and_the_notes(said: Said, root: Path, tmp_path: Path) -> None:
    lines, status = said("--mode=container")
    assert status == [DEMANDED, ALONE]
    assert lines[1] == "put /opt/cni/bin/hpn"
    assert lines[-1] == ALONE
    (root / "opt/cni/bin/loopback").touch()
    _, (_, note) = said("--mode=container")
    assert note.startswith("/opt/cni/bin has no Multus: ")
    (root / "opt/cni/bin/multus-shim").touch()
    assert said("--mode=container") == ([DEMANDED, "it is already installed"], [DEMANDED])

    _, (mode, note) = said()
    assert mode == "this node runs hpn in containers: systemd does not run on this node"
    assert note.startswith(f"{tmp_path}/kubelet is another directory than kubelet's, which has this pod; ")
    (tmp_path / "kubelet" / OURS).mkdir(parents=True)
    assert said()[1] == [mode]


@pytest.mark.parametrize(
    ("pfs", "asked"),
    [
        ("pfs: [{selectors: {ifNames: [ens1]}, mtu: 9000}]", ""),
        ("pfs: [{selectors: {ifNames: [ens1]}, numVfs: 4}]", "pfs"),
        ("pfs: [{selectors: {ifNames: [ib0]}, guids: true}], rdmaNamespaces: exclusive", "pfs and rdmaNamespaces"),
    ],
)
def test_what_hpn_node_cannot_do_in_its_container(said: Said, tmp_path: Path, pfs: str, asked: str) -> None:
    (tmp_path / "devices.yaml").write_text(MASTERS.replace("PFS", pfs))
    note = f"hpn node cannot write to the node's /sys and /etc/modprobe.d, as {asked} of the device file may need; set "
    assert [one.startswith(note) for one in said("--mode=container")[1][2:]] == ([True] if asked else [])
    assert said("--mode=container", "--provision")[1] == [DEMANDED, ALONE]


def test_another_device_plugin(tmp_path: Path) -> None:
    (tmp_path / OURS).mkdir(parents=True)
    offered = {"example.com/rail0", "example.com/rail1"}
    assert list(notes.of_kubelet(tmp_path, offered)) == []
    (tmp_path / "plugins_registry").mkdir()
    other = tmp_path / "plugins_registry/other.sock"
    with offering(other, "example.com/rail1"):
        (note,) = notes.of_kubelet(tmp_path, offered)
        assert note.startswith(f"example.com/rail1: {other} is another device plugin that offers it, so hpn node does ")
        assert list(notes.of_kubelet(tmp_path, {"example.com/rail0"})) == []


def test_a_note_that_cannot_be_found_stops_no_installation(
    said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_kubelet: Path, _offered: Collection[str]) -> list[str]:
        raise RecursionError

    monkeypatch.setattr(notes, "of_kubelet", fails)
    assert said()[1][1:] == [ALONE]


def test_nothing_is_left_in_other_directories(tmp_path: Path, root: Path) -> None:
    """Of MicroK8s: the runtime's plugins, and kubelet.  The usual ones have files of others."""
    kubelet, plugins = "/var/snap/microk8s/common/var/lib/kubelet", "/var/snap/microk8s/current/opt/cni/bin"
    file = program(tmp_path)
    install(root, file, layout.daemonset_units((), kubelet, plugins), "")
    registry, programs = Path(f"{root}{kubelet}/plugins_registry"), Path(f"{root}{plugins}")
    registry.mkdir(parents=True)
    for name in (".hpn-node.lock", ".hpn-node.json", ".hpn-dra.json", ".hpn-labels.json"):
        (registry / name).touch()
    programs.mkdir(parents=True)
    (programs / "hpn").write_bytes(file.read_bytes())
    (programs / "hpn-ipam").hardlink_to(programs / "hpn")
    (programs / "macvlan").write_text("theirs")
    (registry / "theirs.sock").touch()
    said = uninstall(root)
    assert tree(root) == {f"{plugins}/macvlan"[1:]: "theirs", f"{kubelet}/plugins_registry/theirs.sock"[1:]: ""}
    assert {f"remove {plugins}/hpn", f"remove {kubelet}/plugins_registry/.hpn-node.lock"} <= set(said)
