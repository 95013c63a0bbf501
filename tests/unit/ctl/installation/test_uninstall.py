"""hpn uninstall without systemd: removed files, kept files, and refusals."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.installed import ROOT, UNITS, killed_at, program, tree
from unit.ctl.installation.test_state import leases
from unit.ctl.test_inspect import VF, save

from base.protocol.errors import IoFailure, NotAvailable
from base.state import durable
from base.state.claims import Claim
from ctl.installation import layout
from ctl.installation.command import NOBODY, answer_uninstall, install, uninstall
from ipam.cluster.node_blocks import NodeBlocks, OwnedBlock, write
from node.provision.model import OPTION_FILE


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The units of the source tree."""
    monkeypatch.syspath_prepend(ROOT)


@pytest.fixture
def installed(root: Path, tmp_path: Path) -> Path:
    install(root, program(tmp_path), UNITS, "")
    return root


def test_nothing_is_left(installed: Path) -> None:
    state = ("var/lib/cni/hpn/program/0123/hpn", "var/log/hpn/rail0.log", "run/hpn/locks/device-1")
    for path in (*state, OPTION_FILE.lstrip("/")):
        (installed / path).parent.mkdir(parents=True)
        (installed / path).touch()
    (installed / "etc" / "cni" / "hpn.d").mkdir(parents=True)
    (installed / "var" / "lib" / "kubelet" / "plugins_registry").mkdir(parents=True)
    for name in (".hpn-node.lock", ".hpn-node.json", ".hpn-dra.json", ".hpn-labels.json"):
        (installed / "var" / "lib" / "kubelet" / "plugins_registry" / name).touch()
    said = uninstall(installed)
    assert tree(installed) == {}
    assert sorted(path.name for path in installed.rglob("*hpn*")) == []
    assert "remove /opt/cni/bin/hpn" in said
    assert not [line for line in said if "left" in line]
    assert uninstall(installed) == ["nothing of hpn is installed"]


HOOKED = """{"kind": "hpn.io/net", "devices": [{"name": "a", "containerEdits": {"env": ["A=1"], "hooks": [1]}}]}"""


@pytest.mark.parametrize("words", [["--hooks"], []])
def test_no_container_waits_for_its_hook(installed: Path, words: list[str]) -> None:
    """The file stays, because a container gets its device again when it restarts.  The hook goes before its program.
    The package's prerm has the option."""
    file = installed / "run/cdi/hpn-example.com_a.json"
    file.parent.mkdir(parents=True)
    file.write_text(HOOKED)
    said, status = answer_uninstall([f"--root={installed}", *words])
    lines = said.splitlines()
    (device,) = json.loads(file.read_text())["devices"]
    assert device["containerEdits"] == {"env": ["A=1"]}
    if words:
        assert lines == [f"{file}"]
    else:
        assert lines.index(f"remove the hook from {file}") < lines.index("remove /opt/cni/bin/hpn")
    assert status == 0
    assert (installed / "opt/cni/bin/hpn").exists() is bool(words)


def test_killed_at_every_step(root: Path, tmp_path: Path) -> None:
    """The next uninstall completes a killed one."""
    for step in range(1000):
        install(root, program(tmp_path), UNITS, "")
        (root / "run" / "hpn" / "locks").mkdir(parents=True)
        (root / "run" / "hpn" / "locks" / "device-1").touch()
        killed = killed_at(step, lambda: uninstall(root))
        uninstall(root)
        assert tree(root) == {}, f"step {step}"
        if not killed:
            assert step > 15
            return
    pytest.fail("it never ended")


def test_nothing_to_remove(root: Path) -> None:
    assert uninstall(root) == ["nothing of hpn is installed"]
    assert list(root.iterdir()) == []


def test_what_others_wrote_stays_and_is_named(installed: Path) -> None:
    others = {
        "etc/hpn/devices.yaml": "# not yet",
        "etc/cni/hpn.d/rail0.conflist": "{}",
        "etc/cni/net.d/10-rail0.conf": "{}",
        "opt/cni/bin/macvlan": "theirs",
        f"{layout.UNITS}/{layout.AGENT}": "[Service]\n",
        layout.IPAM: "another program of that name",
    }
    for path, text in others.items():
        (installed / path).parent.mkdir(parents=True, exist_ok=True)
        (installed / path).unlink(missing_ok=True)
        (installed / path).write_text(text)
    said = uninstall(installed)
    assert tree(installed) == others
    left = {f"/{path}" for path in others if ".d/" not in path and "macvlan" not in path and "devices.yaml" not in path}
    left |= {"/etc/hpn", "/etc/cni/hpn.d"}
    assert {line.removeprefix("left: ") for line in said if line.startswith("left")} == left


def test_what_was_copied_by_hand(root: Path, tmp_path: Path) -> None:
    """Uninstalling removes copies by hand, as an older install.md described them."""
    for path in (layout.HPN, layout.COMMAND, f"{layout.UNITS}/x"):
        (root / path).parent.mkdir(parents=True)
    (root / layout.HPN).write_bytes(program(tmp_path).read_bytes())
    (root / layout.IPAM).symlink_to("hpn")
    (root / layout.COMMAND).symlink_to(f"/{layout.HPN}")
    for unit in (ROOT / "packaging" / "systemd").iterdir():
        (root / layout.UNITS / unit.name).write_bytes(unit.read_bytes())
    uninstall(root)
    assert tree(root) == {}


def test_refused_while_an_attachment_lives(installed: Path) -> None:
    save(installed / "run" / "hpn", VF)
    before = tree(installed)
    whose = "hpn0 of container 0123456789ab, network rail0"
    with pytest.raises(NotAvailable, match=rf"hpn is in use: {whose}\.  Nothing was removed"):
        uninstall(installed)
    assert tree(installed) == before
    said = uninstall(installed, force=True)
    assert f"still in use: {whose}" in said
    assert {name.partition("hpn/")[0] for name in tree(installed)} == {"run/"}
    assert "run/hpn/attachments/rail0/0123456789abcdef:hpn0.json" in tree(installed)
    assert "left: /run/hpn" in said


def test_refused_while_a_claim_is_prepared(installed: Path) -> None:
    """Its pod could not end without hpn node.  A claim of an earlier boot is no obstacle."""
    claim = Claim("0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f", "default", "rails", ("u",), ())
    path = installed / "run/hpn/claims" / f"{claim.uid}.json"
    durable.write(path, claim.to_json())
    with pytest.raises(NotAvailable) as e:
        uninstall(installed)
    assert e.value.msg.startswith("hpn is in use: claim default/rails, which is prepared.  Nothing was removed.")
    assert "interface" not in e.value.msg.partition("--force")[0]
    assert e.value.msg.endswith("; but pods with claims cannot end without hpn node")
    assert answer_uninstall([f"--root={installed}", "--check"]) == ("claim default/rails, which is prepared\n", 1)
    path.write_text("{")
    with pytest.raises(NotAvailable, match=f"{path}, which cannot be read"):
        uninstall(installed)
    durable.write(path, replace(claim, boot="of before").to_json())
    uninstall(installed)
    assert tree(installed) == {}


def held(root: Path, boot: str, count: int = 1) -> None:
    about = f'"pod":"","netns":"","boot":"{boot}","time":"2026-01-02T03:04:05+00:00"}}'
    keys = (f'{{"containerID":"c{n}","ifname":"hpn0","addresses":["10.56.0.{n + 2}/24"],' for n in range(count))
    leases(root, '{"schema": 1}', *(key + about for key in keys))


def test_refused_while_addresses_are_held(installed: Path) -> None:
    held(installed, durable.boot_id(), 12)
    with pytest.raises(NotAvailable) as e:
        uninstall(installed)
    assert "10.56.0.2 of hpn0 of container c0, network rail0; 10.56.0.3 of" in e.value.msg
    assert "container c9, network rail0; and 2 more." in e.value.msg


def test_addresses_of_an_older_boot_are_no_obstacle(installed: Path) -> None:
    held(installed, "an older one")
    uninstall(installed)
    assert tree(installed) == {}


def test_a_record_that_cannot_be_read(installed: Path) -> None:
    path = installed / "run" / "hpn" / "attachments" / "rail0" / "c:hpn0.json"
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(NotAvailable, match=f"{path}, which cannot be read"):
        uninstall(installed)


def unreadable_line(root: Path) -> tuple[Path, str]:
    path = leases(root, '{"schema": 1}')
    path.write_bytes(path.read_bytes() + b'{"addresses":["10.56.0.2/24"]}'.ljust(511) + b"\n")
    return path, ", line 1, which cannot be read"


def leases_that_are_none(root: Path) -> tuple[Path, str]:
    path = root / "var/lib/cni/hpn/ipam/rail0/leases"
    path.mkdir(parents=True)
    return path, ": not a file; move it away; its contents are unknown"


@pytest.mark.parametrize("make", [unreadable_line, leases_that_are_none])
def test_leases_that_cannot_be_read(installed: Path, make: Callable[[Path], tuple[Path, str]]) -> None:
    """Unreadable leases stop hpn uninstall, because a pod may own them."""
    path, why = make(installed)
    with pytest.raises(NotAvailable, match=re.escape(f"{path}{why}")):
        uninstall(installed)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_lease_that_was_set_aside(installed: Path, *, is_over: bool) -> None:
    """A quarantined lease holds its addresses until the next boot."""
    boot = "an older one" if is_over else durable.boot_id()
    leases(installed, '{"schema": 1}', f'{{"unreadable":"f","key":"00","boot":"{boot}","addresses":["10.56.0.2"]}}')
    who = ["10.56.0.2 of network rail0, whose lease could not be read"]
    words = ["--check", "--root", f"{installed}"]
    assert answer_uninstall(words) == (f"{NOBODY if is_over else who[0]}\n", 1 - is_over)


def test_blocks_of_shared_pools(installed: Path) -> None:
    """Uninstalling frees no blocks, and reports once how to free them, whatever the number of networks."""
    folder = installed / "var/lib/cni/hpn/ipam"
    for number in range(8):
        (folder / f"rail{number}").mkdir(parents=True, mode=0o700)
        blocks = (OwnedBlock(3, "u", "node1"),)
        write(folder / f"rail{number}", NodeBlocks(f"rail{number}", "etcd", "c", "node1", "m", 16, blocks=blocks))
    (folder / "other").mkdir()
    (folder / "other" / "blocks").write_text("{")
    said = uninstall(installed)
    assert not (folder / "rail0" / "blocks").exists()
    (line,) = (line for line in said if "cluster's backend" in line)
    assert (
        "still lists blocks of rail0, rail1, rail2 and 5 more for node node1; to free them at once, run on an" in line
    )
    assert line.endswith(": hpn ipam release-node node1 --force")
    assert any(line.startswith(f"{folder}/other/blocks cannot be read") for line in said)


def test_who_would_be_left_without_it(installed: Path) -> None:
    """The Debian package runs this check before removal; only this sentence permits it."""
    words = ["--check", "--root", f"{installed}"]
    assert answer_uninstall(words) == (f"{NOBODY}\n", 0)
    assert f'[ "$report" = "{NOBODY}" ]' in (ROOT / "packaging" / "deb" / "prerm").read_text()
    save(installed / "run" / "hpn", VF)
    held(installed, durable.boot_id(), 2)
    before = tree(installed)
    said, status = answer_uninstall(words)
    assert status == 1
    assert [line.partition(",")[0] for line in said.splitlines()] == [
        "hpn0 of container 0123456789ab",
        "10.56.0.2 of hpn0 of container c0",
        "10.56.0.3 of hpn0 of container c1",
    ]
    assert tree(installed) == before


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_the_debian_package_is_left_to_apt(root: Path, tmp_path: Path, command: str) -> None:
    (root / layout.PACKAGE).parent.mkdir(parents=True)
    (root / layout.PACKAGE).write_text("/.\n/opt\n/opt/cni/bin/hpn\n")
    with pytest.raises(IoFailure, match=re.escape("the Debian package hpn-cni installed /opt/cni/bin/hpn")):
        _ = install(root, program(tmp_path), UNITS, "") if command == "install" else uninstall(root)
    assert list(tree(root)) == [layout.PACKAGE]
    # As a DaemonSet's pod sees it.
    (root / layout.PACKAGE).unlink()
    (root / layout.HPN).parent.mkdir(parents=True)
    (root / layout.HPN).symlink_to(layout.PACKAGED)
    with pytest.raises(IoFailure, match=re.escape("the Debian package hpn-cni installed /opt/cni/bin/hpn")):
        _ = install(root, program(tmp_path), {}, "") if command == "install" else uninstall(root)
    assert list(tree(root)) == [layout.HPN]
    (root / layout.HPN).unlink()
    (root / layout.PACKAGE).write_text("/etc/hpn\n")  # removed, and not purged
    install(root, program(tmp_path), UNITS, "")
