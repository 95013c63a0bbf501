"""When hpn node labels its Node: with the key, after the wait of a boot; and it removes what an earlier file left."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.daemon import Daemon
from node.labels import content
from node.labels.publisher import Publisher
from node.log import Topics
from node.model import Settings


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Any]:
    """Only its part for labels."""
    made: Any = object.__new__(Daemon)
    made._loop, made._topics, made._registry, made._kubeconfig = asyncio.new_event_loop(), Topics(), tmp_path, ""
    made._labels = made._listener = made._dra = None
    made._devices, made._resources = {}, SimpleNamespace(served={})
    made._awaited, made._settings = SimpleNamespace(is_over=True), Settings((), "")
    yield made
    if made._labels:
        made._labels.close()
    made._loop.close()


def told(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the publisher gets at a change: the labels, here what they are made of."""
    found = list[object]()
    monkeypatch.setattr(content, "labels", lambda *facts, hca: {"facts": (*facts, hca)})
    monkeypatch.setattr(Publisher, "changed", lambda self: found.append(self._wanted()))
    daemon._start_labels()
    daemon._label()
    return found


def test_without_the_key(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(daemon, monkeypatch) == []
    assert daemon._labels is None
    (daemon._registry / ".hpn-labels.json").touch()
    assert told(daemon, monkeypatch) == [{}]


def test_with_the_key(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon._settings = Settings((), "", labels=True, hca_label=True)
    daemon._awaited.is_over = False
    assert told(daemon, monkeypatch) == []
    daemon._awaited.is_over = True
    assert told(daemon, monkeypatch) == [{"facts": ([], {}, None, True)}]
    daemon._listener = SimpleNamespace(settled={"0000:3b:00.0": "it"})
    assert told(daemon, monkeypatch) == [{"facts": ([], {}, {"0000:3b:00.0": "it"}, True)}]
    daemon._settings = Settings((), "")  # after SIGHUP
    assert told(daemon, monkeypatch) == [{}]
