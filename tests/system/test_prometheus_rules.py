"""Each alert of conf/, by promtool in simulated time: when it fires and when it does not."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.pages import ROOT, anchors
from support.shipped import PROMETHEUS, RULES
from system.prometheus import rules

ALERTS = {rule["alert"]: rule for rule in rules()}
COMMANDS = 'hpn_commands_total{job="hpn", instance="node1", kind="macvlan", verb="'
ADD, DEL = COMMANDS + 'ADD", code="%s"}', COMMANDS + 'DEL", code="%s"}'
BUCKET = 'hpn_command_duration_seconds_bucket{job="hpn", instance="node1", verb="ADD", kind="sriov", le="%s"}'
UP = 'up{job="hpn", instance="node1"}'
DEVICES = 'hpn_devices{job="hpn", instance="node1", resource="example.com/vf", state="%s"}'
PORT = 'hpn_rdma_port_active{job="hpn", instance="node1", rdma_dev="mlx5_0", port="1"}'
POOL = 'hpn_pool_%s{job="hpn", instance="node1", network="rail0", range="10.56.0.2-10.56.0.254"}'
BLOCKS = 'hpn_cluster_%s{job="hpn", instance="node1", network="rail0"%s}'
HELD = 'hpn_cluster_blocks{job="hpn", instance="node%s", network="rail0", state="held"}'
OWNED = {BLOCKS % ("pool_blocks", ""): "10x60"}
PROBLEM = 'hpn_problems{job="hpn", instance="node1", topic="files"}'


@dataclass(frozen=True)
class Case:
    """An alert, measurements for each minute in promtool's notation, and whether the alert fires at that minute."""

    what: str
    alert: str
    series: dict[str, str]
    minute: int
    fires: bool

    def __str__(self) -> str:
        return f"{self.alert}: {self.what}"


def slow(at_most_2_5: int) -> dict[str, str]:
    """Twenty ADDs a minute, with this many within 2.5 s and all within 5 s."""
    return {BUCKET % le: f"0+{number}x40" for le, number in (("1", 0), ("2.5", at_most_2_5), ("5", 20), ("+Inf", 20))}


CASES = [
    Case("no answer for ten minutes", "HpnNodeDown", {UP: "1x4 0x20"}, 11, True),
    Case("no answer for four minutes", "HpnNodeDown", {UP: "1x4 0x20"}, 9, False),
    Case("a restart", "HpnNodeDown", {UP: "1x4 0x2 1x20"}, 11, False),
    Case("only another job", "HpnAbsent", {'up{job="kubelet"}': "1x40"}, 15, True),
    Case("a node that is down is not absent", "HpnAbsent", {UP: "0x40"}, 15, False),
    Case("2 of 12", "HpnCommandsFail", {ADD % 0: "0+10x40", ADD % 103: "0+2x40"}, 25, True),
    Case("1 of 11", "HpnCommandsFail", {ADD % 0: "0+10x40", ADD % 103: "0+1x40"}, 25, False),
    Case("all, for a short time", "HpnCommandsFail", {ADD % 0: "0+0x40", ADD % 11: "0+9x4 36x40"}, 12, False),
    Case("all, and then none", "HpnCommandsFail", {ADD % 0: "0+0x40", ADD % 11: "0+9x4 36x40"}, 30, False),
    Case(
        "DELs, while ADDs do not",
        "HpnCommandsFail",
        {ADD % 0: "0+90x40", DEL % 0: "0x40", DEL % 101: "0+1x40"},
        25,
        True,
    ),
    Case("nobody calls", "HpnCommandsFail", {ADD % 0: "7x40", ADD % 103: "7x40"}, 25, False),
    Case("three in twenty above 2.5 s", "HpnCommandsSlow", slow(17), 25, True),
    Case("one in twenty above 2.5 s", "HpnCommandsSlow", slow(19), 25, False),
    Case("228 of 253", "HpnPoolNearlyExhausted", {POOL % "addresses": "253x40", POOL % "leases": "228x40"}, 20, True),
    Case("227 of 253", "HpnPoolNearlyExhausted", {POOL % "addresses": "253x40", POOL % "leases": "227x40"}, 20, False),
    Case("a crowd", "HpnPoolNearlyExhausted", {POOL % "addresses": "9x40", POOL % "leases": "9x12 1x9"}, 20, False),
    Case("no address", "HpnPoolNearlyExhausted", {POOL % "addresses": "0x40", POOL % "leases": "0x40"}, 20, False),
    Case("for twenty minutes", "HpnDeviceUnhealthy", {DEVICES % "unhealthy": "2x40"}, 20, True),
    Case("for ten minutes", "HpnDeviceUnhealthy", {DEVICES % "unhealthy": "0x9 2x40"}, 20, False),
    Case("healthy ones", "HpnDeviceUnhealthy", {DEVICES % "healthy": "8x40", DEVICES % "unhealthy": "0x40"}, 20, False),
    Case("was up", "HpnRdmaPortDown", {PORT: "1x10 0x40"}, 14, True),
    Case("never was up", "HpnRdmaPortDown", {PORT: "0x40"}, 20, False),
    Case("one minute", "HpnRdmaPortDown", {PORT: "1x10 0 1x40"}, 14, False),
    Case("is up", "HpnRdmaPortDown", {PORT: "0x10 1x40"}, 20, False),
    Case("for ten minutes", "HpnProblem", {PROBLEM: "0 1x40"}, 10, True),
    Case("for two minutes", "HpnProblem", {PROBLEM: "0x5 1x1 0x40"}, 12, False),
    Case("none", "HpnProblem", {PROBLEM: "0x40"}, 20, False),
    Case("one block", "HpnBlockLost", {BLOCKS % ("blocks", ', state="lost"'): "0x4 1x40"}, 8, True),
    Case("none", "HpnBlockLost", {BLOCKS % ("blocks", ', state="held"'): "4x40"}, 8, False),
    Case("the clock goes on", "HpnBlocksUnseen", {BLOCKS % ("looked_timestamp_seconds", ""): "0x60"}, 40, True),
    Case("every ten minutes", "HpnBlocksUnseen", {BLOCKS % ("looked_timestamp_seconds", ""): "0+60x60"}, 60, False),
    Case("for twenty minutes", "HpnBlocksFull", {BLOCKS % ("room", ""): "0x40"}, 20, True),
    Case("for ten minutes", "HpnBlocksFull", {BLOCKS % ("room", ""): "1x9 0x10 3x20"}, 25, False),
    Case(
        "9 of 10 blocks, of two nodes",
        "HpnClusterPoolNearlyExhausted",
        OWNED | {HELD % 1: "5x60", HELD % 2: "4x60"},
        40,
        True,
    ),
    Case("8 of 10", "HpnClusterPoolNearlyExhausted", OWNED | {HELD % 1: "4x60", HELD % 2: "4x60"}, 40, False),
    Case("a dead node's", "HpnClusterPoolNearlyExhausted", OWNED | {HELD % 1: "5x60", HELD % 2: "4x9 _x50"}, 55, True),
]


def promtool(programs: Path, *words: str | Path) -> None:
    done = subprocess.run([programs / "promtool", *words], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr


def test_promtool_takes_both_files(prometheus: Path) -> None:
    promtool(prometheus, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    promtool(prometheus, "check", "config", "--lint=all", "--lint-fatal", PROMETHEUS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fires(case: Case, prometheus: Path, tmp_path: Path) -> None:
    firing = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}}) or vector(0)'
    expected = {
        "expr": firing,
        "eval_time": f"{case.minute}m",
        "exp_samples": [{"labels": "{}", "value": int(case.fires)}],
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [expected],
    }
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    promtool(prometheus, "test", "rules", file)


@pytest.mark.parametrize("name", ALERTS)
def test_has_both_sides(name: str) -> None:
    assert {case.fires for case in CASES if case.alert == name} == {True, False}


@pytest.mark.parametrize("name", ALERTS)
def test_says_what_to_do(name: str) -> None:
    """The text names a command and an existing heading."""
    rule = ALERTS[name]
    assert rule["labels"].keys() == {"severity"}
    assert re.search(r"`(hpn|journalctl|systemctl|kubectl|rdma|ip|promtool) [^`]+`", rule["annotations"]["description"])
    page, _, heading = rule["annotations"]["runbook"].partition("#")
    assert heading == name.lower()
    assert heading in anchors(ROOT / page)
