"""Documents in a real etcd: one member, three members that lose their leader, and one member with TLS and users."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cluster.space import until
from support.documents_contract import Contract, block, create, names
from support.shared_stores import Etcds, etcds
from support.tls_server import Authority, authority

from base.kernel import budget
from base.protocol.errors import BackendRefused, Unreachable
from ipam.cluster import BLOCK, Document, Documents
from ipam.cluster.backends import etcd, kv
from ipam.cluster.backends.etcd import Etcd
from ipam.cluster.backends.kv import Gateway, Settings

Opened = Callable[..., Etcd]
_ever = count()


@pytest.fixture(autouse=True)
def _a_whole_budget() -> None:
    budget.begin()


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:

        def open_it(*urls: str, is_patient: bool = False, **settings: Any) -> Etcd:
            gateway = Gateway(Settings(tuple(urls), **settings), is_patient=is_patient)
            stack.callback(gateway.close)
            return Etcd(gateway, settings.get("prefix", "/hpn"))

        yield open_it


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcds]:
    with etcds(tmp_path_factory.mktemp("etcd")) as it:
        yield it


class TestContract(Contract):
    @pytest.fixture
    def store(self, one: Etcds, opened: Opened) -> Documents:
        """An empty store under its own prefix."""
        return opened(*one.urls, prefix=f"/test-{next(_ever)}")


def test_pages(one: Etcds, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd, "PAGE", 7)
    store = opened(*one.urls, prefix="/pages", is_patient=True)
    for index in range(30):
        create(store, block("net", index))
    assert names(store.listed(BLOCK, "net")) == sorted(f"net.{index}" for index in range(30))
    assert names(store.listed(BLOCK, node="node1")) == sorted(f"net.{index}" for index in range(30))


def test_a_node_is_silent(one: Etcds, opened: Opened) -> None:
    """When its lease expires, etcd itself forgets that the node is alive."""
    store = opened(*one.urls, prefix="/silent", is_patient=True)
    create(store, block("net", 1))
    store.keep_alive("node1", 2)
    told = store.machine("node1").last_seen
    assert told
    alive = kv.get("/silent/alive/node1")["request_range"]
    until(lambda: not one.call(0, "/v3/kv/range", alive).get("kvs"), "the lease to end", 60)
    last_seen = store.machine("node1").last_seen
    assert last_seen is not None
    assert last_seen < store.now()
    store.keep_alive("node1", 2)
    assert store.machine("node1").last_seen == store.now()


def test_the_clock_is_the_servers(one: Etcds, opened: Opened) -> None:
    # time: two clocks, not how long anything takes
    assert abs(opened(*one.urls).now() - time.time()) < 60


def test_a_lost_leader(opened: Opened, tmp_path: Path) -> None:
    """Whichever member is asked or killed, the store answers or gives a reason to retry."""
    with etcds(tmp_path, 3) as three:
        store = opened(*three.urls, is_patient=True)
        create(store, block("net", 0))
        for index in range(1, 4):
            leader = three.leader()
            three.members[leader].kill()
            made = until(lambda index=index: _tried(store, index), "an answer", 60)
            assert made == store.read(BLOCK, f"net.{index}")
            three.members[leader].start()
        assert len(store.listed(BLOCK, "net")) == 4


def _tried(store: Etcd, index: int) -> Document | None:
    one = block("net", index)
    try:
        return store.create(BLOCK, one.name, one.network, one.to_json()) or store.read(BLOCK, one.name)
    except Unreachable:
        return None


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Path]:
    folder = tmp_path_factory.mktemp("authority")
    return authority(folder), folder


def _files(folder: Path, name: str, pair: tuple[bytes, bytes]) -> dict[str, Path]:
    cert, key = folder / f"{name}.cert", folder / f"{name}.private"
    cert.write_bytes(pair[0])
    key.write_bytes(pair[1])
    return {"cert": cert, "key": key}


def test_with_certificates_and_users(opened: Opened, signed: tuple[Authority, Path], tmp_path: Path) -> None:
    it, folder = signed
    theirs = _files(folder, "server", it.sign("/CN=etcd", names="IP:127.0.0.1"))
    # With users enabled, etcd's gateway accepts no certificate with a common name.
    named = {key: str(path) for key, path in _files(folder, "named", it.sign("/CN=node1")).items()}
    ours = {key: str(path) for key, path in _files(folder, "client", it.sign("/O=nodes")).items()}
    tls = {"ca": folder / "ca.pem", **theirs}
    with etcds(tmp_path, tls=tls) as secured:
        url = secured.urls[0]
        assert opened(url, ca=str(folder / "ca.pem"), **ours).create(BLOCK, "net.0", "net", {"node": "node1"})
        with pytest.raises(BackendRefused, match=r"the certificate of .* is not trusted"):
            opened(url).read(BLOCK, "net.0")
        with pytest.raises(BackendRefused, match="refuses this node's certificate"):
            opened(url, ca=str(folder / "ca.pem")).read(BLOCK, "net.0")
        _enable_users(secured)
        with pytest.raises(BackendRefused, match="accepts no certificate with a common name: use one without"):
            opened(url, ca=str(folder / "ca.pem"), **named).read(BLOCK, "net.0")
        _with_users(opened, {"url": url, "ca": str(folder / "ca.pem"), **ours}, tmp_path)


def _enable_users(it: Etcds) -> None:
    """Enable users: root has all permissions, hpn those below /hpn."""
    permission = {"permType": "READWRITE", "key": kv.base64("/hpn/"), "range_end": kv.base64("/hpn0")}
    for path, body in (
        ("user/add", {"name": "root", "password": "root"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": "hpn", "password": "secret"}),
        ("role/add", {"name": "hpn"}),
        ("role/grant", {"name": "hpn", "perm": permission}),
        ("user/grant", {"user": "hpn", "role": "hpn"}),
        ("enable", {}),
    ):
        assert "header" in it.call(0, f"/v3/auth/{path}", body), path


def _with_users(opened: Opened, tls: dict[str, str], folder: Path) -> None:
    url = tls.pop("url")
    password = folder / "password"
    password.write_text("secret\n")
    user = {"user": "hpn", "password_file": str(password)}
    with pytest.raises(BackendRefused, match=r"it requires a user: set backends\.etcd\.user"):
        opened(url, **tls).read(BLOCK, "net.0")
    store = opened(url, **tls, **user)
    assert store.read(BLOCK, "net.0")
    create(store, block("net", 1))
    store.keep_alive("node1", 60)
    assert store.identity()
    with pytest.raises(BackendRefused, match=r"forbids user hpn to read /other/block/net\.0: .* readwrite /other/"):
        opened(url, **tls, **user, prefix="/other").read(BLOCK, "net.0")
    password.write_text("wrong")
    with pytest.raises(BackendRefused, match="rejects user hpn"):
        opened(url, **tls, **user).read(BLOCK, "net.0")
