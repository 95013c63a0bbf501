"""A server that is no backend: each call ends with an error that names the request."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import tls_server
from support.etcd_server import Keys, Member, body, opening, serving
from support.strange import changed
from support.tls_server import Authority, Server, Told, authority

from base.kernel import budget
from base.protocol.errors import BackendRefused, RecordUnreadable
from ipam.cluster import BLOCK, POOL, Document, Documents
from ipam.cluster.backends import kubernetes
from ipam.cluster.rules.documents import Block, PoolLayout

ROUNDS = 60
SERVER = "127.0.0.1"
KNOWN = Document(BLOCK, "net.3", body(3), "u-1", "7")
META = {"name": "net.3", "uid": "u-1", "resourceVersion": "7", "generation": 1, "labels": {"hpn-cni.io/node": "n1"}}
WRITTEN = [
    {
        "manager": "hpn",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-11-23T06:00:00Z",
        "fieldsV1": {"f:spec": {}},
    }
]
FOUND = {"apiVersion": "hpn-cni.io/v1", "kind": "HpnBlock", "metadata": META, "spec": KNOWN.body}
LISTED = {
    "apiVersion": "hpn-cni.io/v1", "kind": "HpnBlockList", "items": [FOUND, FOUND],
    "metadata": {"continue": "abc", "remainingItemCount": 1, "resourceVersion": "9"},
}  # fmt: skip
POOLS = {**FOUND, "spec": PoolLayout("net", 16, ("10.0.0.0/24",)).to_json()}
NODE = {"kind": "Node", "metadata": {"name": "n1", "uid": "m-1", "resourceVersion": "3"}, "status": {}}
LEASE = {
    "kind": "Lease", "metadata": {"name": "n1", "uid": "l-1", "managedFields": WRITTEN},
    "spec": {"holderIdentity": "n1", "renewTime": "2026-11-23T06:00:00.000000Z"},
}  # fmt: skip
OWNED = {"ownerReferences": [{"kind": "HpnBlock", "name": "net.3", "uid": "u-1"}]}
ADOPTED = {**LEASE, "metadata": {"name": "n1", "managedFields": WRITTEN, **OWNED}}
LAST = {**LISTED, "metadata": {"resourceVersion": "9"}}
# Each call, and the API server's answer.
CALLS: list[tuple[Callable[[Documents], object], list[Any]]] = [
    (lambda store: store.create(BLOCK, "net.3", "net", KNOWN.body), [FOUND]),
    (lambda store: Block.of(store.read(BLOCK, "net.3") or KNOWN), [FOUND]),
    (lambda store: PoolLayout.of(store.read(POOL, "net") or KNOWN), [POOLS]),
    (lambda store: [Block.of(one) for one in store.listed(BLOCK)], [LISTED, LAST]),
    (lambda store: [Block.of(one) for one in store.listed(BLOCK, "net", "n1")], [LAST]),
    (lambda store: store.replace(KNOWN, KNOWN.body), [FOUND]),
    (lambda store: store.remove(KNOWN), [FOUND]),
    (lambda store: store.machine("n1"), [NODE, LEASE]),
    (lambda store: store.keep_alive("n1", 3600), [LEASE, LEASE]),
    (lambda store: store.keep_alive("n1", 3600), [ADOPTED, NODE, LEASE]),
    (lambda store: store.identity(), [NODE]),
]


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def server(signer: Authority, tmp_path: Path) -> Iterator[Server]:
    with tls_server.serving(*signer.sign("/CN=server", names="IP:127.0.0.1"), folder=tmp_path) as one:
        yield one


@pytest.fixture
def api(server: Server, signer: Authority, tmp_path: Path) -> Iterator[kubernetes.Kubernetes]:
    (tmp_path / "ca.pem").write_bytes(signer.ca)
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": "ca.pem"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    store, _ = kubernetes.opened({"kubeconfig": f"{tmp_path}/kubeconfig"}, "n1")
    assert isinstance(store, kubernetes.Kubernetes)
    yield store
    store.close()


def refused(call: Callable[[Documents], object], store: Documents) -> bool:
    """Whether the call is refused, with the proper message."""
    budget.begin()
    try:
        call(store)
    except (BackendRefused, RecordUnreadable) as e:
        said = e.msg
    else:
        return False
    said.encode()
    assert SERVER in said or "in the cluster's backend" in said or "in etcd" in said
    return True


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_no_api_server(api: kubernetes.Kubernetes, server: Server, number: int) -> None:
    call, answers = CALLS[number]
    chance, count = random.Random(number), 0
    for _ in range(ROUNDS):
        told = [Told(200, one) for one in answers]
        which = chance.randrange(len(told))
        told[which] = Told(200, changed(answers[which], chance))
        server.forget()
        server.tell(*told)
        count += refused(call, api)
    # Only the part that is read must be valid.
    assert count or number == 6


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_no_etcd(number: int) -> None:
    chance, count = random.Random(number), 0
    with serving(Member()) as member, opening() as opened:
        store = opened(member)
        for made in (body(3), body(4)):
            assert store.create(BLOCK, f"net.{made['index']}", "net", made)
        assert store.create(POOL, "net", "net", POOLS["spec"])
        known = store.read(BLOCK, "net.3")
        assert known
        store.keep_alive("n1", 3600)
        call = {5: lambda one: one.replace(known, body(3)), 6: lambda one: one.remove(known)}.get(
            number, CALLS[number][0]
        )
        keys, member.change = member.keys, lambda answer: changed(answer, chance)
        for _ in range(ROUNDS):
            member.keys, store._identity = Keys(keys), ""
            count += refused(call, store)
    assert count


def test_a_page_that_comes_again(api: kubernetes.Kubernetes, server: Server) -> None:
    """The list would never end."""
    server.tell(*[Told(200, LISTED)] * 3)
    budget.begin()
    with pytest.raises(
        BackendRefused, match=r"the request was to list hpnblocks\.hpn-cni\.io, and in its answer continue is 'abc'"
    ):
        api.listed(BLOCK)


def test_keys_that_come_again() -> None:
    with serving(Member()) as member, opening() as opened:
        store = opened(member)
        assert store.create(BLOCK, "net.3", "net", body(3))
        first = dict[str, Any]()
        member.change = lambda answer: first or first.update(answer, more=True) or first
        asked = "not an etcd: the request was to list /hpn/block/"
        with pytest.raises(BackendRefused, match=rf"{asked}, and in .*net\.3 again"):
            store.listed(BLOCK)


def test_what_an_answer_says_of_the_time(api: kubernetes.Kubernetes, server: Server) -> None:
    for date in ("Mon, 23 Nov 99999 06:00:00 GMT", "Mon, 23 Nov 0000 06:00:00 GMT", "x", ""):
        server.tell(Told(200, FOUND, {"Date": date}))
        budget.begin()
        assert api.read(BLOCK, "net.3")


def test_a_transaction_that_neither_succeeded_nor_failed() -> None:
    """Any text would count as true, and the node would own a block that it did not get."""
    with serving(Member()) as member, opening() as opened:
        store = opened(member)
        member.change = lambda answer: {**answer, "succeeded": "no"}
        with pytest.raises(BackendRefused, match="in its answer succeeded is 'no'"):
            store.create(BLOCK, "net.3", "net", body(3))
