"""Fixtures of the system tier, and the check that each test leaves nothing behind."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import require
from support import helm
from system.machine import ROOT, Machine, Tools, fabric, running


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    if os.geteuid() != 0:
        require("system", "root, to make network namespaces")
    for variable, file in (("HPN_BINARY", "."), ("HPN_PEERS", "cnitool")):
        if not os.environ.get(variable) or not Path(os.environ[variable], file).exists():
            require("system", f"{variable}, which `make test` sets after building it")
    # Not the directory of an installed program, and without an agent of the machine.
    os.environ["HPN_PROGRAM_DIR"] = str(tmp_path_factory.mktemp("program"))
    os.environ["HPN_AGENT"] = ""
    plugins = tmp_path_factory.mktemp("plugins")
    shutil.copy(os.environ["HPN_BINARY"], plugins / "hpn")
    (plugins / "hpn-ipam").hardlink_to(plugins / "hpn")
    return Tools(Path(os.environ["HPN_BINARY"]), Path(os.environ["HPN_PEERS"]), plugins)


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """The directory of prometheus and promtool; the first call builds them, for minutes."""
    built = subprocess.run([ROOT / "netns-fixtures/prometheus"], capture_output=True, text=True, check=False)
    if built.returncode:
        require("system", built.stderr.strip())
    return Path(built.stdout.strip())


@pytest.fixture(scope="session")
def chart() -> helm.Chart:
    return helm.Chart(helm.built("system"))


@pytest.fixture(autouse=True)
def machine_unchanged(tools: Tools) -> Iterator[None]:
    """After every test: the machine has no additional link, cached result, process or state file of ours."""

    def belongings() -> dict[str, set[Any]]:
        return {
            "links": {link["ifname"] for link in fabric.ip("link")},
            "results": set(fabric.RESULTS.glob("*")),
            "processes": set(running()),
            "state in the default places": {p for d in ("/run/hpn", "/var/lib/cni/hpn") for p in files(Path(d))},
        }

    def files(directory: Path) -> list[Path]:
        """Files and links; an empty directory is no state, and neither is a file that locks use (locks.py)."""
        found = [path for path in directory.rglob("*") if path.is_symlink() or not path.is_dir()]
        return [path for path in found if path.parent.name != "locks"]

    before = belongings()
    yield
    assert belongings() == before


@pytest.fixture
def machine(
    tools: Tools, tmp_path: Path, nothing_left: None, machine_unchanged: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    """A node with rail0 wired to a fabric; afterwards, check that the test detached all that it attached."""
    for directory in ("net.d", "bin", "tmp"):
        (tmp_path / directory).mkdir()
    with ExitStack() as stack:
        it = Machine(tools, fabric.Node(f"hpn-test-{os.getpid()}"), tmp_path, stack)
        monkeypatch.setenv("HPN_STATE_DIR", f"{it.state}")
        stack.enter_context(fabric.results_kept(it.pods))
        stack.enter_context(fabric.node(it.node.prefix))
        yield it
        it.nothing_held()
