"""hpn devices, hpn gids and hpn devinfo by the one file, on the real machine, for root and for other users."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from system.machine import Tools

NOBODY = 65534


@pytest.fixture(params=[0, NOBODY], ids=["root", "nobody"])
def call(tools: Tools, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The command that runs the program as a user who has the program and a home."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        shutil.copy(tools.hpn, home / "hpn")
        for path in (home, home / "hpn"):
            path.chmod(0o755)
            os.chown(path, request.param, request.param)
        yield ["setpriv", f"--reuid={request.param}", f"--regid={request.param}", "--clear-groups", "env", "-i",
               f"HOME={home}", f"HPN_PROGRAM_DIR={home}/program", f"{home}/hpn"]  # fmt: skip


def run(call: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*call, *words], capture_output=True, text=True, check=False)


def test_devices(call: list[str]) -> None:
    """All NICs of PCI, and a table."""
    done = run(call, "devices", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)["devices"]
    nics = [path.parent for path in Path("/sys/bus/pci/devices").glob("*/class") if path.read_text().startswith("0x02")]
    assert {one["device"] for pf in found for one in (pf, *pf.get("below", []))} >= {nic.name for nic in nics}
    for words in ([], ["-v"], ["-vv"]):
        done = run(call, "devices", *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(nic.name in done.stdout for nic in nics)


def test_rdma_devices(call: list[str]) -> None:
    """A machine without RDMA devices has an empty table, and a sentence."""
    there = sorted(os.listdir("/sys/class/infiniband")) if Path("/sys/class/infiniband").exists() else []
    gids, devinfo = run(call, "gids"), run(call, "devinfo")
    assert (gids.returncode, gids.stderr) == (0, "")
    assert {line.split("\t")[0] for line in gids.stdout.splitlines()[2:-1]} <= set(there)
    assert gids.stdout.splitlines()[-1].startswith("n_gids_found=")
    if there:
        assert (devinfo.returncode, devinfo.stderr) == (0, "")
        assert all(f"hca_id:\t{name}\n" in devinfo.stdout for name in there)
    else:
        said = "hpn devinfo: there is no RDMA device in this network namespace; list the NICs: hpn devices\n"
        assert (devinfo.returncode, devinfo.stdout, devinfo.stderr) == (1, "", said)


@pytest.mark.parametrize("words", [["devices", "nowhere"], ["gids", "nowhere"], ["devinfo", "-d", "nowhere"]])
def test_a_device_that_is_not_there(call: list[str], words: list[str]) -> None:
    done = run(call, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"hpn {words[0]}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["devices", "--nothing"], ["gids", "mlx5_0", "x"], ["devinfo", "-d"]])
def test_wrong_options(call: list[str], words: list[str]) -> None:
    done = run(call, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"usage: hpn {words[0]}" in done.stderr
