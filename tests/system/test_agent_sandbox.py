"""The shipped unit forbids the agent nothing that a promise against an attacker needs."""

import sys
from pathlib import Path

from conftest import require
from support import attacked
from support.topology import until
from system.bare import this_machine
from system.machine import ROOT, Tools

LAUNCHER = "/opt/cni/bin/hpn"


def test_the_promises_against_attackers(tools: Tools, tmp_path: Path) -> None:
    """They hold through the agent under its unit alone: no launcher does the work itself."""
    if not Path("/lib/systemd/systemd").exists() or not Path("/dev/net/tun").exists():
        require("system", "systemd, and /dev/net/tun")
    # The interpreter, the tree and the binary may be on other disks than the root.
    with this_machine(tmp_path, ROOT, Path(sys.prefix), tools.binary.parent) as machine:
        machine.ok("ip", "link", "delete", "rail0")  # each test makes it
        machine.ok("mount", "-o", "remount,bind,rw", "/proc/sys")  # the settings of a namespace
        machine.ok(tools.binary, "install")
        ask = {"CNI_COMMAND": "VERSION", "HPN_PROGRAM_DIR": "/proc/nowhere"}
        until(lambda: machine.run(LAUNCHER, **ask).returncode == 0, 120)
        words = attacked.words("/tmp/attacked", *attacked.chosen())
        done = machine.run(*words, **attacked.environment(LAUNCHER))
        log = machine.run("systemctl", "status", "hpn-agent.service").stdout
    assert done.returncode == 0, done.stdout + done.stderr + log


def test_the_list_of_devices_is_applied(tools: Tools, tmp_path: Path) -> None:
    """The control to the test above: without the unit's last line about devices, systemd denies the TUN device."""
    unit = (ROOT / "packaging" / "systemd" / "hpn-agent.service").read_text()
    *first, last = (line for line in unit.splitlines() if line.startswith("Device"))
    with this_machine(tmp_path, ROOT) as machine:
        for name, limits in (("denied", first), ("opens", [*first, last])):
            words = ["[Service]", "Type=oneshot", *limits, 'ExecStart=/bin/sh -c ": <>/dev/net/tun"']
            machine.write(f"etc/systemd/system/{name}.service", "\n".join([*words, ""]))
        assert machine.run("systemctl", "start", "denied").returncode != 0
        machine.ok("systemctl", "start", "opens")
