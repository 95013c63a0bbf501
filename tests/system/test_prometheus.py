"""conf/ in a real Prometheus that reads real nodes: every alert is raised once, and every panel has data."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.shipped import DASHBOARD
from system.machine import Tools
from system.prometheus import rules
from system.watched import Seen, seen

BOARD = json.loads(DASHBOARD.read_text())
# The values that Grafana inserts (Grafana, Global variables).
VARIABLES = {"$instance": ".*", "$__rate_interval": "1m"}
QUERIES = [
    pytest.param(target["expr"], id=f"{panel['title']}, {target['refId']}")
    for panel in BOARD["panels"]
    for target in panel["targets"]
]
EXPRESSIONS = [rule["expr"] for rule in rules()] + [query.values[0] for query in QUERIES]


@pytest.fixture(scope="module")
def watched(tools: Tools, prometheus: Path) -> Iterator[Seen]:
    with seen(tools, prometheus) as it:
        yield it


def test_nothing_is_raised_while_all_is_well(watched: Seen) -> None:
    assert watched.well == {}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_is_raised(watched: Seen, rule: dict[str, Any]) -> None:
    raised = watched.ill.get(rule["alert"])
    assert raised, f"raised were {watched.ill.keys()}"
    assert raised["state"] == "firing"
    for text in raised["annotations"].values():
        assert not re.search(r"[{}]|<error|<no value|\s{2}", text), text
    description = raised["annotations"]["description"]
    for label in set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"])):
        assert raised["labels"][label] in description


def test_which_device_is_unhealthy_is_said(watched: Seen) -> None:
    assert "(rail0): " in watched.ill["HpnDeviceUnhealthy"]["annotations"]["description"]


@pytest.mark.parametrize("expr", QUERIES)
def test_a_panel_has_something_to_show(watched: Seen, expr: str) -> None:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    assert "$" not in expr
    values = [value for _, value in watched.prometheus.query(expr, watched.then)]
    assert values
    assert not all(math.isnan(value) for value in values), "nothing but NaN"


def test_what_is_asked_for_is_served(watched: Seen) -> None:
    served = {labels["__name__"] for labels, _ in watched.prometheus.query('{__name__=~"hpn_.*"}', watched.then)}
    assert {name for expr in EXPRESSIONS for name in re.findall(r"\bhpn_\w+", expr)} <= served


def test_panels_fill_one_screen() -> None:
    """Panels fill 24 columns and 24 rows, which fit on 1080 lines below Grafana's own bars, without overlap."""
    fields = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert sorted(fields) == [(x, y) for x in range(24) for y in range(24)]
