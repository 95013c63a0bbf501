"""The contract of every store, for any kind of storage.

A new store gets a row in STORES and passes all of these tests.  Nothing here may use files, lines or locks.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path

import pytest

from base.protocol.errors import AddressUnavailable, CheckFailed, PoolExhausted
from base.protocol.result import Address, Ip
from base.protocol.spec import Key
from base.state import durable
from ipam.ranges import Span, whole
from ipam.stores import Book, Choose, Gone, Owner, Sandbox, Store, Terms
from ipam.stores.access import open_in
from ipam.stores.holdings import Kept, Lease

# How to open each store: the network is new for each test, and opened again for each call.
STORES: Mapping[str, Callable[[Path, Gone], Store]] = {
    "files": lambda place, gone: open_in(place, "net", [], gone),
}
A, B, C = (Key(cid, "net1") for cid in ("a", "b", "c"))
TEN = Span(4, int(ip_address("10.0.0.1")), int(ip_address("10.0.0.10")))
POD = Sandbox(inode=1, cookie=2, mounts=3, processes=4)
ANOTHER = Sandbox(inode=1, cookie=9, mounts=3, processes=4)


class Network:
    """A network in the store, and the set of dead namespaces."""

    def __init__(self, opened: Callable[[Gone], Store]) -> None:
        self._opened = opened
        self.gone: set[Sandbox] = set()

    @property
    def store(self) -> Store:
        return self._opened(self.gone.intersection)

    def reserve(self, key: Key, choose: Choose, pod: str = "", sandbox: Sandbox | None = None, **terms: object) -> str:
        """The allocated addresses, as text."""
        owner = Owner(key, pod, "/run/netns/p", sandbox, Terms(**terms))  # type: ignore[arg-type]
        return words(ip.address.ip for ip in self.store.reserve(owner, choose))

    def held(self) -> dict[str, str]:
        """Each attachment's addresses, by key."""
        holdings = [one.holding for one in self.store.contents().listed]
        return {str(one.owner.key): words(one.ips) for one in holdings if isinstance(one, Lease)}

    def kept(self) -> str:
        """The addresses kept back."""
        holdings = [one.holding for one in self.store.contents().listed if not one.is_over]
        return words(ip for one in holdings if isinstance(one, Kept) for ip in one.ips)

    def holder(self, address: str) -> str:
        """The store's description of the address's holder."""
        said = list[str]()

        def look(book: Book) -> tuple[Ip, ...]:
            said.append(book.holder(ip_address(address)))
            raise AddressUnavailable("only looking")

        with pytest.raises(AddressUnavailable):
            self.reserve(Key("x", "net1"), look)
        return said[-1]  # a store may call it again


@pytest.fixture(params=STORES)
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Network:
    return Network(partial(STORES[request.param], tmp_path))


def words(addresses: Collection[Address] | object) -> str:
    return " ".join(sorted(map(str, addresses)))  # type: ignore[call-overload]


def these(*addresses: str) -> Choose:
    """Choose exactly these."""
    return lambda _: tuple(Ip(ip_interface(address), None) for address in addresses)


def lowest(book: Book) -> tuple[Ip, ...]:
    """Choose the owner's address, else the lowest free one of ten."""
    free = book.first_free(TEN) if not book.mine else book.mine[0]
    if free is None:
        raise PoolExhausted("all ten are held")
    return (Ip(ip_interface(f"{free}/24"), None),)


def none_of(_book: Book) -> tuple[Ip, ...]:
    raise PoolExhausted("none")


def test_reserve_holds_what_is_chosen(network: Network) -> None:
    assert network.reserve(A, these("10.0.0.1/24", "fd00::1/64"), pod="ns/p") == "10.0.0.1 fd00::1"
    assert words(network.store.check(A)) == "10.0.0.1 fd00::1"
    assert network.reserve(B, lowest) == "10.0.0.2"
    assert "a" in network.holder("10.0.0.1")
    assert network.holder("10.0.0.3") == ""
    assert network.held() == {"a:net1": "10.0.0.1 fd00::1", "b:net1": "10.0.0.2"}


def test_reserve_again_is_the_same(network: Network) -> None:
    network.reserve(A, lowest)
    network.reserve(B, lowest)
    assert network.reserve(A, lowest) == "10.0.0.1"
    assert network.held() == {"a:net1": "10.0.0.1", "b:net1": "10.0.0.2"}


def test_reserve_of_others_frees_what_was_held(network: Network) -> None:
    network.reserve(A, these("10.0.0.1/24"))
    network.reserve(A, these("10.0.0.5/24"))
    assert network.held() == {"a:net1": "10.0.0.5"}
    assert network.reserve(B, lowest) == "10.0.0.1"


def test_what_the_choice_raises_changes_nothing(network: Network) -> None:
    network.reserve(A, lowest)
    for key in (A, B):
        with pytest.raises(PoolExhausted):
            network.reserve(key, none_of)
    assert network.held() == {"a:net1": "10.0.0.1"}


def test_the_view_of_a_choice(network: Network) -> None:
    seen = list[tuple[Sequence[Address], ...]]()

    def look(book: Book) -> tuple[Ip, ...]:
        seen.append((book.mine, book.siblings))
        return lowest(book)

    network.reserve(Key("a", "net2"), lowest)
    network.reserve(B, lowest)
    network.reserve(A, look)
    network.reserve(A, look)
    assert [tuple(map(words, one)) for one in (seen[0], seen[-1])] == [("", "10.0.0.1"), ("10.0.0.3", "10.0.0.1")]


def test_all_ten_and_no_more(network: Network) -> None:
    """Concurrently, like containers."""
    with ThreadPoolExecutor(10) as pool:
        given = list(pool.map(lambda i: network.reserve(Key(f"c{i}", "net1"), lowest), range(10)))
    assert len(set(given)) == 10
    with pytest.raises(PoolExhausted):
        network.reserve(A, lowest)


def test_release(network: Network) -> None:
    network.reserve(A, lowest)
    network.reserve(B, lowest)
    for _ in range(2):
        network.store.release(A)
        assert network.held() == {"b:net1": "10.0.0.2"}
    network.store.release(C)
    assert network.reserve(C, lowest) == "10.0.0.1"


def test_nothing_to_release_or_check(network: Network) -> None:
    network.store.release(A)
    assert network.store.collect(frozenset()) == 0
    with pytest.raises(CheckFailed):
        network.store.check(A)


def test_cooldown(network: Network) -> None:
    network.reserve(A, lowest, cooldown=1000)
    network.store.release(A)
    assert (network.held(), network.kept()) == ({}, "10.0.0.1")
    assert network.holder("10.0.0.1")
    assert network.reserve(B, lowest) == "10.0.0.2"
    assert network.store.collect(None) == 0
    network.reserve(C, lowest, cooldown=1000)
    network.store.release(C, unused=True)
    assert network.kept() == "10.0.0.1"


def test_a_sticky_name_gets_its_address_again(network: Network) -> None:
    network.reserve(A, lowest, sticky="ns/p", ttl=1000)
    network.store.release(A)
    assert network.reserve(B, lowest, sticky="ns/q", ttl=1000) == "10.0.0.2"
    assert network.reserve(C, lowest, sticky="ns/p", ttl=1000) == "10.0.0.1"
    assert network.kept() == ""


def test_a_sticky_name_whose_last_pod_died(network: Network) -> None:
    network.reserve(A, lowest, sandbox=POD, sticky="ns/p", ttl=1000)
    assert network.reserve(B, lowest, sticky="ns/p", ttl=1000) == "10.0.0.2"
    network.gone = {POD}
    assert network.reserve(C, lowest, sticky="ns/p", ttl=1000) == "10.0.0.1"
    assert "a:net1" not in network.held()


def test_what_may_be_in_use_waits_for_a_probe(network: Network) -> None:
    network.reserve(A, lowest)
    network.store.release(A, in_use=True)
    assert network.store.collect(None) == 0
    assert network.reserve(B, lowest) == "10.0.0.2"
    assert network.store.collect(None, probing=True) == 1
    assert network.reserve(C, lowest) == "10.0.0.1"


def test_declined_addresses_are_kept_back(network: Network) -> None:
    one, two = ip_address("10.0.0.1"), ip_address("10.0.0.2")
    network.reserve(A, these("10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/24"))
    kept = network.store.decline(A, {one: "aa", two: "bb"}, 600, lambda taken, _: [ip for ip in taken if ip == one])
    assert kept == {one: "aa"}
    assert network.held() == {"a:net1": "10.0.0.3"}
    assert network.reserve(B, lowest) == "10.0.0.2"
    assert "aa" in network.holder("10.0.0.1")
    assert network.store.release_conflicts() == 1
    assert network.reserve(C, lowest) == "10.0.0.1"


def test_collect_by_a_list(network: Network) -> None:
    for key in (A, B, C):
        network.reserve(key, lowest)
    assert network.store.collect(frozenset({A}), lambda: [B]) == 1
    assert network.held().keys() == {"a:net1", "b:net1"}


def test_collect_asks_for_attachments_after_it_has_read(network: Network) -> None:
    """An attachment added meanwhile has a record by then, or is not among the leases that were read."""
    network.reserve(A, lowest)

    def attached() -> tuple[Key, ...]:
        network.reserve(B, lowest)
        return ()

    assert network.store.collect(frozenset(), attached) == 1
    assert network.held() == {"b:net1": "10.0.0.2"}


def test_collect_of_the_dead(network: Network) -> None:
    network.reserve(A, lowest, sandbox=POD)
    network.reserve(B, lowest, sandbox=ANOTHER)
    network.reserve(C, lowest)
    assert network.store.collect(None) == 0
    network.gone = {POD}
    assert [one.is_over for one in network.store.contents().listed].count(True) == 1
    assert network.store.collect(None) == 1
    assert network.held().keys() == {"b:net1", "c:net1"}


def test_rehearse(network: Network) -> None:
    network.store.rehearse(lowest)
    with pytest.raises(PoolExhausted):
        network.store.rehearse(none_of)
    assert network.held() == {}


def test_a_look_counts_what_is_not_free(network: Network) -> None:
    network.reserve(A, these("10.0.0.1/24", "10.0.15.255/16", "10.0.16.0/16", "fd00::5/64"))
    network.reserve(B, these("10.0.0.9/24"), cooldown=1000)
    network.store.release(B)
    counted = {"10.0.0.0/16": 4, "10.0.0.8/29": 1, "10.0.0.2/31": 0, "10.0.15.254/31": 1, "fd00::/64": 1}
    spans = [whole(ip_network(text)) for text in counted]
    assert network.store.look(lambda book: [book.count(span) for span in spans]) == list(counted.values())


def test_nothing_is_given_during_a_look(network: Network) -> None:
    def look(book: Book) -> int:
        asked.append(others.submit(network.reserve, A, lowest).result)
        # time: nothing is to happen
        time.sleep(0.05)
        return book.count(TEN)

    asked = list[Callable[[int], str]]()
    with ThreadPoolExecutor(1) as others:
        assert (network.store.look(look), asked[0](60)) == (0, "10.0.0.1")


def adopted(key: Key, *addresses: str) -> Lease:
    return Lease(Owner(key), tuple(map(ip_interface, addresses)), durable.boot_id(), "2026-01-01T00:00:00Z")


def test_adopt_all_or_nothing(network: Network) -> None:
    network.reserve(A, these("10.0.0.1/24"))
    free, taken = adopted(B, "10.0.0.5/24"), adopted(C, "10.0.0.1/24")
    assert network.store.adopt([free], dry_run=True) == []
    assert len(network.store.adopt([free, taken])) == 1
    assert len(network.store.adopt([adopted(B, "10.0.0.7/24"), adopted(C, "10.0.0.7/24")])) == 1
    assert network.held() == {"a:net1": "10.0.0.1"}
    for _ in range(2):
        assert network.store.adopt([free]) == []
    assert network.held() == {"a:net1": "10.0.0.1", "b:net1": "10.0.0.5"}


def test_contents_are_what_was_reserved(network: Network) -> None:
    owner = Owner(A, "ns/p", "/run/netns/p", POD, Terms(5, "ns/p:net1", 6))
    network.store.reserve(owner, these("10.0.0.1/24"), ((TEN,),))
    contents = network.store.contents()
    (one,) = contents.listed
    assert isinstance(one.holding, Lease)
    assert (one.holding.owner, one.holding.addresses) == (owner, (ip_interface("10.0.0.1/24"),))
    assert (contents.name, contents.sets, contents.problem, contents.unreadable) == ("net", ((TEN,),), "", ())
    assert network.store.verify() == []
