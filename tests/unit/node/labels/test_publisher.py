"""When hpn node writes labels: at its start, at changes, after failures, and until none is left."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.node_loop import turn
from support.publishing import Publishing

from base.state import durable
from node.labels import publisher
from node.labels.publisher import Publisher
from node.log import Topics

ALL = {"hpn-cni.io/rails": "8", "hpn-cni.io/speed": "400"}


class Node(Publishing):
    """hpn node's part, with the labels ``found``.  Each round adds a line to ``rounds``, and ends with ``problem``."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.topics, self.file = Topics(), folder / ".hpn-labels.json"
        self.folder, self.problem, self.found = folder, "", dict[str, str]()
        self.publisher = self.made()

    def made(self) -> Publisher:
        made = Publisher(self.loop, self.topics, "/kubeconfig", self.file, lambda: self.found)
        made._round = self._round  # type: ignore[method-assign]
        return made

    def _round(self, labels: Mapping[str, str]) -> str:
        with (self.folder / "rounds").open("a") as file:
            file.write(f"{sorted(labels.items())}\n")
        return self.problem

    @property
    def rounds(self) -> list[str]:
        path = self.folder / "rounds"
        return path.read_text().splitlines() if path.exists() else []

    def update(self, **found: str) -> None:
        self.found = {f"hpn-cni.io/{name}": value for name, value in found.items()}
        self.publisher.changed()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(publisher, "REST", 0.01)
    with Node(tmp_path).closing() as one:
        yield one


def test_at_changes_only(node: Node) -> None:
    node.update(rails="8", speed="400")
    node.after(1)
    node.update(rails="8", speed="400")
    turn(node.loop, 0.1)
    assert node.rounds == [f"{sorted(ALL.items())}"]
    node.update(rails="7", speed="400")
    node.after(2)
    assert "('hpn-cni.io/rails', '7')" in node.rounds[1]


def test_a_value_that_is_unknown_keeps_its_last_one(node: Node) -> None:
    """Also after a restart, which asks the API server once."""
    node.update(rails="8", speed="400", leaves="")
    node.after(1)
    assert node.rounds == [f"{sorted(ALL.items())}"], "there was none of the leaves"
    node.update(rails="8", speed="")
    turn(node.loop, 0.1)
    assert len(node.rounds) == 1
    node.publisher.close()
    node.publisher = node.made()
    node.update(rails="8", speed="")
    node.after(2)
    assert node.rounds[1] == node.rounds[0]


def test_the_end_of_the_key(node: Node) -> None:
    """A later process finds the file of the one that wrote labels; without that, there is nothing to do."""
    node.update()
    turn(node.loop, 0.1)
    assert node.rounds == []
    node.update(rails="8")
    node.after(1)
    node.publisher.close()
    node.publisher, node.problem = node.made(), "no answer"
    node.update()
    node.after(2)
    assert node.file.exists(), "they may be there still"
    node.problem = ""
    node.publisher._due = 0.0
    node.update()
    node.after(3)
    assert node.rounds[1:] == ["[]", "[]"]
    assert not node.file.exists()
    node.update()
    turn(node.loop, 0.1)
    assert len(node.rounds) == 3


def test_a_failure(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events make no round before the next attempt, which comes twice as late each time."""
    monkeypatch.setattr(publisher, "AGAIN", 0.3)
    node.problem = "the labels are not written"
    node.update(rails="8")
    node.after(1)
    assert "labels" in node.topics.problems
    node.update(rails="8")
    turn(node.loop, 0.1)
    assert len(node.rounds) == 1
    node.after(3)
    assert node.publisher._background.due
    assert node.publisher._background.due - node.loop.time() > 0.3 * 4 * 0.5
    node.problem = ""
    node.until(lambda: "labels" not in node.topics.problems)
    assert node.publisher._failures == 0


def test_a_damaged_file(node: Node) -> None:
    node.file.write_text("{}")
    node.publisher = node.made()
    node.update()
    node.after(1)
    assert not node.file.exists()
    durable.write(node.file, {"labels": []}, makes=False)
    assert node.made()._labels == {}
