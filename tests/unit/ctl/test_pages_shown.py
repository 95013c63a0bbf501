"""The output of hpn doctor, top and report on test nodes equals the output in the pages.

HPN_WRITE_PAGES=1 writes the output into the pages instead; review it before a commit.
"""

import re
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.doctor_node import Node
from support.pages import ROOT, is_shown
from unit.ctl.test_report import attachment, device
from unit.ctl.test_report import told as documents
from unit.ctl.test_top import LAST

from ctl.main import main
from ctl.report.page import Answer, page
from ctl.screen import text
from ctl.top import command as top
from ctl.top.counters import Sample, Seen, Totals
from ctl.top.rates import Rates, now_line
from hardware.rdma_users import OF_KERNEL, User

DOCS = ROOT / "docs" / "user"
GBIT = 1e9 / 8
POD = ("default", "train-0")


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        node = Node(Path(folder, "root"))
        node.at("sys/module/ib_core/parameters/netns_mode").write_text("Y\n")
        node.at("dev/infiniband/rdma_cm").unlink()
        assert main(["hpn", "doctor", "--root", str(node.root)]) == 1
        for sock in node.sockets:
            sock.close()
        is_shown("operations.md", "hpn doctor", capsys.readouterr().out.replace(str(node.root), ""))


def rates(gbits: float, errors: int = 0) -> Rates:
    """Return rates in both directions, in packets of 4 KiB."""
    rx, tx = gbits * GBIT, gbits * GBIT * 0.9997
    return Rates(rx, tx, rx / 4096, tx / 4096, {"out_of_sequence": errors} if errors else {})


def test_top() -> None:
    """The case: a pod of three rails, where one began to lose packets, and a port of the host with three users."""
    good = (3.2, 18.5, 81, 96.1, 96.1, 82, 95.9, 96.2, 96, 96.11)
    bad = (3.2, 18.5, 81, 52, 41, 40.3, 40.1, 40.4, 40.2, 40.26)
    ports = {("mlx5_0", "1"): ("", ""), **{(f"mlx5_{number}", "1"): POD for number in (8, 9, 10)}}
    uses = {
        ("mlx5_0", OF_KERNEL): {"qp": 1, "cq": 1},
        ("mlx5_0", User(uid="5f0d1e6c-8a57-4c0b-9d52-0a4ad0e39b1c")): {"qp": 2, "mr": 8, "cq": 2, "objects": 14},
        ("mlx5_0", User("default", "eval-0")): {"qp": 64, "mr": 310, "cq": 34, "objects": 425},
    }
    seen = {name: Seen("ACTIVE", owner, Totals(0, 0)) for name, owner in ports.items()}
    sample = Sample(0.0, seen, frozenset(), uses)
    steps = []
    for number, (fast, slow) in enumerate(zip(good, bad, strict=True)):
        now = [Rates(), rates(fast), rates(slow, 520 if number > 3 else 0), rates(fast * 0.9985)]
        steps.append((sample, dict(zip(ports, now, strict=True)), 1.0))
    *_, frame = top._frames(iter(steps), {})
    is_shown("commands.md", "hpn top", text(frame))


def test_top_of_one_device() -> None:
    """The output on a terminal after Ctrl-C; tests/unit/ctl/test_top.py checks that summary."""
    mib = 2**20
    line = now_line(datetime(2026, 1, 1, 15, 59, 56), Rates(52.43 * mib, 52.10 * mib, 38990, 37488))  # noqa: DTZ001
    begin = "Monitoring mlx5_8...    (press CTRL-C to stop)"
    is_shown("commands.md", "hpn top mlx5_8 -l", f"{begin}\n\n{line}\n{LAST.replace('mlx5_0', 'mlx5_8')}")


def test_report() -> None:
    """The page's table lists each heading of a complete report."""
    left = attachment("default/b", trouble="no such pool", file="/run/hpn/refused/rail0/x.json")
    parts = documents(
        devices={"devices": [device(0)], "unread": ["the GPUs of node 1 cannot be read"]},
        attachments={"attachments": [attachment("default/a")], "refused": [left]},
    )
    parts |= {"gids": Answer("hpn gids --json", {}, "Permission denied")}
    headings = re.findall(r"<h2>([^<:]*)", page("t", [], parts))
    section = (DOCS / "operations.md").read_text().partition("\n## hpn report\n")[2].partition("\n## ")[0]
    table = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    assert table == ["heading", *headings]
