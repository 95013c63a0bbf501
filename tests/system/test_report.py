"""hpn report of a node with a pod, in a real browser."""

import re
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import require
from system.machine import ROOT, Machine, Tools, ours

# For root, without a browser's background services; its own sandbox does not work for root.
BROWSER = (
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-breakpad", "--no-first-run", "--enable-logging=stderr",
    "--hide-scrollbars", "--window-size=1280,1600",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> tuple[str, ...]:
    ready = subprocess.run([ROOT / "netns-fixtures/setup", "browser"], capture_output=True, text=True, check=False)
    if ready.returncode:
        require("system", ready.stderr.strip())
    return BROWSER


def opened(browser: tuple[str, ...], page: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Open the page in the browser, without a network and in its own PID namespace, which ends all its processes."""
    alone = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    command = [*alone, *browser, f"--user-data-dir={page.parent / 'browser'}", *words, f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)


def test_what_a_browser_shows(machine: Machine, tools: Tools, browser: tuple[str, ...], tmp_path: Path) -> None:
    machine.network(ours())
    pod = machine.pod()
    address = machine.ok("add", pod)["ips"][0]["address"]
    page = tmp_path / "node.html"
    written = subprocess.run([tools.binary, "report", page], capture_output=True, text=True, check=False)
    assert (written.returncode, written.stderr) == (0, "")
    shown = opened(browser, page, "--dump-dom")
    words = re.sub(r"<[^>]*>", " ", shown.stdout.partition("<body>")[2])
    for word in ("The node", "Findings", "Attachments: 1", address, "macvlan", "alive", "Pools", "hpn doctor --json"):
        assert word in words
    assert "What could not be read" not in words
    assert shown.stdout.count("<svg") == 1
    # The console reports what the page's policy forbids, and errors.  The browser's own page complains about a slow
    # machine.
    assert [said for said in shown.stderr.splitlines() if "CONSOLE" in said and "source: chrome://" not in said] == []
    picture = tmp_path / "page.png"
    opened(browser, page, f"--screenshot={picture}")
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1280, 1600)
    machine.ok("del", pod)
