"""A real Prometheus with the configuration and rules of conf/, with short intervals."""

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import yaml
from support.daemons import Daemon
from support.shipped import PROMETHEUS, RULES

# The interval between reads, and the timeout of a page: a busy machine is slow.
READING = "2s"
LOOKING = "1s"  # the interval between evaluations of its rules
LASTING = "3s"  # the time for which a condition must hold, in place of minutes


def rules() -> list[dict[str, Any]]:
    """The alerts of conf/, unchanged."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def example() -> dict[str, Any]:
    """The configuration of conf/, with the commented lines for a unix socket enabled."""
    text = re.sub(r"^  # (?=- |  )", "  ", PROMETHEUS.read_text(), flags=re.MULTILINE)
    read: dict[str, Any] = yaml.safe_load(text)
    return read


class Prometheus(Daemon):
    """A Prometheus that runs until its ``with`` ends, on a port of the loopback."""

    def __init__(self, programs: Path, folder: Path) -> None:
        super().__init__()
        self.programs, self.folder = programs, folder
        quick = [rule | {"for": LASTING} for rule in rules()]
        (folder / RULES.name).write_text(json.dumps({"groups": [{"name": "hpn", "rules": quick}]}))

    def configure(self, *targets: dict[str, Any]) -> None:
        """Scrape these targets, which are entries of static_configs."""
        config = example()
        config["global"] = {"scrape_interval": READING, "scrape_timeout": READING, "evaluation_interval": LOOKING}
        config["scrape_configs"][0]["static_configs"] = list(targets)
        (self.folder / PROMETHEUS.name).write_text(json.dumps(config))

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        argv = [
            *(str(self.programs / "prometheus"), f"--config.file={self.folder / PROMETHEUS.name}"),
            *(f"--storage.tsdb.path={self.folder / 'data'}", f"--web.listen-address={self.address}"),
        ]
        self.start(argv, self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ready(self) -> bool:
        try:
            return bool(self.ask("query", query="vector(1)"))
        except urllib.error.URLError:
            return False

    def ask(self, what: str, **words: str | float) -> Any:
        """The ``data`` of an answer of its API (Prometheus, HTTP API).  Raises URLError."""
        url = f"http://{self.address}/api/v1/{what}?{urlencode(words)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str, when: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of the expression at that time, or now."""
        data = self.ask("query", query=expr, **({"time": when} if when else {}))
        assert data["resultType"] == "vector", data
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    def alerts(self) -> dict[str, dict[str, Any]]:
        """The raised alerts by name, the last of each."""
        return {one["labels"]["alertname"]: one for one in self.ask("alerts")["alerts"]}

    def fire(self, names: Sequence[str]) -> bool:
        """Whether all of these alerts are raised."""
        return set(names) <= {name for name, alert in self.alerts().items() if alert["state"] == "firing"}
