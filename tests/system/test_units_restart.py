"""The shipped units under a real systemd: no number of quick failures ends them for good."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import ROOT
from support.topology import until
from system.bare import Bare, booted

UNITS = sorted((ROOT / "packaging" / "systemd").iterdir())
NODE, AGENT = "hpn-node.service", "hpn-agent.service"
# systemd's own limit is five starts in ten seconds.
MANY = 8
# It notes each start, and fails at once until it is cured.
FAILING = """#!/bin/sh
echo >>/starts.$1
[ -e /cured.$1 ] || exit 1
[ "$1" = agent ] || systemd-notify --ready
exec sleep infinity
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Bare]:
    with booted(tmp_path, "trixie", "systemd") as it:
        it.write("opt/cni/bin/hpn", FAILING, 0o755)
        for unit in UNITS:
            it.write(f"etc/systemd/system/{unit.name}", unit.read_text())
        # systemd-notify is another process than the one that systemd started.
        it.write(f"etc/systemd/system/{NODE}.d/test.conf", "[Service]\nNotifyAccess=all\n")
        it.ok("systemctl", "daemon-reload")
        it.ok("systemctl", "start", "hpn-agent.socket")
        yield it


@pytest.mark.parametrize("unit", [NODE, AGENT])
def test_it_starts_again_after_any_number_of_failures(machine: Bare, unit: str) -> None:
    role = unit.removeprefix("hpn-").removesuffix(".service")
    starts = machine.root / f"starts.{role}"

    def state() -> dict[str, str]:
        shown = machine.ok("systemctl", "show", unit, "hpn-agent.socket", "--property=Id,ActiveState")
        blocks = [dict(line.split("=", 1) for line in one.splitlines()) for one in shown.split("\n\n")]
        return {one["Id"]: one["ActiveState"] for one in blocks}

    machine.run("systemctl", "start", "--no-block", unit)
    until(lambda: "failed" in state().values() or (starts.exists() and len(starts.read_text()) >= MANY), 120)
    assert "failed" not in state().values()
    machine.write(f"cured.{role}", "")
    until(lambda: state()[unit] == "active", 120)
    assert state()["hpn-agent.socket"] == "active"
