"""conf/ in a real Prometheus that reads real nodes: every alert is raised once."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system.machine import Tools
from system.prometheus import rules
from system.watched import Seen, seen


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


def test_what_is_asked_for_is_served(watched: Seen) -> None:
    served = {labels["__name__"] for labels, _ in watched.prometheus.query('{__name__=~"hpn_.*"}', watched.then)}
    assert {name for rule in rules() for name in re.findall(r"\bhpn_\w+", rule["expr"])} <= served
