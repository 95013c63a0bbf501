"""Lists of documents on an API server: in pages, and of one node."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from support.tls_server import Server, Told
from unit.ipam.cluster.test_kubernetes import ABSENT, BLOCKS, BODY, KNOWN, found, status

from base.kernel import budget
from base.kubernetes import http
from base.protocol.errors import Unreachable
from ipam.cluster import BLOCK
from ipam.cluster.backends import kubernetes
from ipam.cluster.backends.kubernetes import Kubernetes


@pytest.fixture
def store(asked: tuple[Server, Path]) -> Iterator[Kubernetes]:
    one, _ = kubernetes.opened({"kubeconfig": str(asked[1])}, "node1")
    assert isinstance(one, Kubernetes)
    yield one
    one.close()


@pytest.mark.parametrize("is_patient", [False, True])
def test_the_blocks_of_a_node_are_read_within_one_budget(
    server: Server, store: Kubernetes, monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    """An ADD waits for that.  For a round no command waits, so each of its requests has a budget."""
    blocks = [found(name=f"net.{number}", uid=f"u-{number}", body=BODY | {"index": number}) for number in range(24)]
    listed, *every = {"metadata": {"resourceVersion": "9"}, "items": blocks}, *blocks
    server.tell(Told(200, listed), *(Told(200, one) for one in every[:9]), Told(is_silent=True))
    server.tell(*(Told(200, one) for one in every[9:]))
    monkeypatch.setattr(http, "_TIMEOUT", 1.0)
    budget.begin(is_patient=is_patient)
    before = budget.left()
    assert len(store.listed(BLOCK, "net", "node1")) == 24
    assert (budget.left() <= before - 1.0) == (not is_patient)


def test_a_list_has_pages(server: Server, store: Kubernetes) -> None:
    other = found(body={**BODY, "network": "another with that label"}, name="x.3")
    server.tell(
        Told(200, {"metadata": {"continue": "a b"}, "items": [found(), other]}),
        Told(200, {"metadata": {}, "items": [found(name="net.4")]}),
    )
    assert [one.name for one in store.listed(BLOCK, "net")] == ["net.3", "net.4"]
    first = f"{BLOCKS}?limit=500&labelSelector=hpn-cni.io%2Fnetwork%3Dnet"
    assert [asked.path for asked in server.asked] == [first, f"{first}&continue=a+b"]


def test_a_nodes_own_are_read_again(server: Server, store: Kubernetes) -> None:
    """The list comes from the watch cache, which may hold removed blocks or former owners."""
    server.tell(
        Told(200, {"metadata": {"continue": "a b"}, "items": [found("5"), found("5", name="net.4")]}),
        Told(200, {"metadata": {}, "items": [found("5", name="net.5")]}),
        Told(200, found("7")),
        ABSENT,
        Told(200, found("7", {**BODY, "node": "node2"}, name="net.5")),
    )
    assert store.listed(BLOCK, "net", "node1") == [KNOWN]
    first = f"{BLOCKS}?limit=500&labelSelector=hpn-cni.io%2Fnetwork%3Dnet%2Chpn-cni.io%2Fnode%3Dnode1"
    # An API server refuses a further page with a resourceVersion.
    lists = [f"{first}&resourceVersion=0", f"{first}&continue=a+b"]
    assert [asked.path for asked in server.asked] == [*lists, *(f"{BLOCKS}/net.{index}" for index in (3, 4, 5))]


def counted(version: object, *items: dict[str, object]) -> Told:
    """Return a list as an API server gives it at that revision."""
    return Told(200, {"metadata": {"resourceVersion": version}, "items": [*items]})


def test_how_far_the_store_has_come(server: Server, store: Kubernetes) -> None:
    """One API server's cache may be older than another's answer; then the revision is read past the cache."""
    assert store.revision(0) == 0
    server.tell(counted("90"))
    store.listed(BLOCK, "net", "node1")
    assert (store.revision(0), store.revision(90)) == (90, 90)
    asked = len(server.asked)
    for now, known in (("120", 100), ("100", 100), ("95", 95), ("40", 40)):
        server.tell(counted(now, found()))
        assert store.revision(100) == known
    assert {asked.path for asked in server.asked[asked:]} == {f"{BLOCKS}?limit=1"}
    server.tell(counted("50"))
    store.listed(BLOCK, "net", "node1")
    assert store.revision(0) == 50


@pytest.mark.parametrize("version", ["", "a1b2", "1" * 21, "-5", "\u0661", 5, None])
def test_a_version_that_is_no_number(server: Server, store: Kubernetes, version: object) -> None:
    """From another storage than etcd: no restore is detected."""
    server.tell(*[counted(version)] * 2)
    store.listed(BLOCK, "net", "node1")
    assert store.revision(100) == 0


def test_a_list_that_was_not_kept_is_read_again(server: Server, store: Kubernetes) -> None:
    first = Told(200, {"metadata": {"continue": "a"}, "items": [found()]})
    server.tell(first, status(410, "Expired"), Told(200, {"metadata": {}, "items": [found(name="net.4")]}))
    assert [one.name for one in store.listed(BLOCK)] == ["net.4"]
    server.tell(*[first, status(410, "Expired")] * 3)
    with pytest.raises(Unreachable, match="dropped the list of blocks before"):
        store.listed(BLOCK)


def test_numbers_that_an_older_version_labelled(server: Server, store: Kubernetes) -> None:
    """It labelled them with a digest.  Unseen, a name would lose its number, and the ADD of its pod would fail."""
    server.tell(Told(200, {"metadata": {}, "items": []}))
    store.listed(BLOCK, "net/sticky")
    asked = parse_qs(urlsplit(server.asked[0].path).query)
    assert asked["labelSelector"] == ["hpn-cni.io/network in (net.sticky,xeb4a1aa9bf1e0b2a)"]
