"""GIDs of attachments: at the index that ADD recorded, or refused if the table is full."""

from collections.abc import Callable
from typing import Any

import pytest
from guest.gid_tables import PATIENT, V1, V2, assert_found, filled, gid, recorded, table
from guest.node import PF, RDMA, Node, macvlan, rdma_devs
from support.elapsed import Elapsed
from support.topology import Pod, ip

from base.state import durable


@pytest.mark.parametrize("keys", [{}, {"name": "mlx5_0"}, {"required": True}], ids=repr)
def test_gids_of_a_vf(node: Node, pod: Pod, keys: dict[str, Any]) -> None:
    conf = node.conf(rdma=PATIENT | keys)
    result = node.ok("ADD", pod, conf)
    assert_found(node, pod, keys.get("name", RDMA))
    assert node.checked(pod, conf, result).exit_code == 0
    # The same addresses at other indexes than ADD recorded.
    pod.ip("address", "del", "10.56.0.2/24", "dev", "hpn0")
    pod.ip("address", "add", "10.99.0.1/24", "dev", "hpn0")
    pod.ip("address", "add", "10.56.0.2/24", "dev", "hpn0")
    reply = node.checked(pod, conf, result)
    assert "10.56.0.2" in reply.stdout
    assert "GID index" in reply.stdout
    node.ok("DEL", pod, conf)


def test_gids_of_a_vf_without_carrier(node: Node, pod: Pod) -> None:
    """ADD waits for no carrier: the kernel has the GIDs as soon as it has the address."""
    ip("link", "set", PF, "down")
    try:
        node.ok("ADD", pod, node.conf(rdma={"required": True, "gidTimeout": 30}))
        assert "LOWER_UP" not in (pod.link() or {})["flags"]
        assert_found(node, pod, RDMA)
        node.ok("DEL", pod)
    finally:
        ip("link", "set", PF, "up")


def test_nothing_is_looked_for(node: Node, pod: Pod) -> None:
    node.ok("ADD", pod, node.conf(rdma={"mode": "off"}))
    assert recorded(node, pod) == {}
    assert rdma_devs(pod.name) == set()
    node.ok("DEL", pod)


@pytest.mark.parametrize("kind", ["macvlan", "ipvlan"])
def test_gids_on_a_shared_master(node: Node, shared: None, hca: str, pod: Pod, kind: str) -> None:
    conf = macvlan(node, kind=kind, rdma={"required": True})
    assert node.call("STATUS", None, conf).exit_code == 0
    result = node.ok("ADD", pod, conf)
    assert_found(node, pod, hca)
    assert node.checked(pod, conf, result).exit_code == 0
    node.ok("DEL", pod, conf)


def test_two_networks_with_the_same_addresses(node: Node, shared: None, hca: str, make_pod: Callable[[], Pod]) -> None:
    """The kernel's table distinguishes equal GIDs only by their order of arrival.  Both pods share one link, so
    duplicate detection is off."""
    one, two = make_pod(), make_pod()
    node.ok("ADD", one, macvlan(node, rdma=PATIENT, dad="off"))
    node.ok("ADD", two, macvlan(node, name="other", rdma=PATIENT, dad="off"))
    assert one.addresses() == two.addresses()
    assert_found(node, one, hca)
    body = durable.read(node.state / "attachments/other" / f"{two.name}:hpn0.json")
    assert body
    found = {g["index"] for g in body["gids"]}
    assert len(found) == 4
    assert found & set(recorded(node, one).values()) == set()
    there = table(hca)
    assert {there[index][:2] for index in found} == {(gid(a), kind) for a in two.addresses() for kind in (V1, V2)}
    node.ok("DEL", one, macvlan(node))
    node.ok("DEL", two, macvlan(node, name="other"))


def test_a_full_table(node: Node, shared: None, hca: str, pod: Pod) -> None:
    """With RDMA required, ADD and STATUS fail before anything is made; otherwise ADD logs a warning."""
    required = macvlan(node, rdma={"required": True})
    with filled(hca, PF, free=2):
        for command, code in (("ADD", 110), ("STATUS", 50)):
            error = node.refused(command, pod, required)
            assert error["code"] == code
            assert [s for s in (hca, "2 of 64 entries free", "takes 4", "VF") if s not in error["msg"]] == []
        assert (pod.links(), node.state_files()) == (set(), set())
        elapsed = Elapsed()
        reply = node.call("ADD", pod, macvlan(node, rdma={"gidTimeout": 60}))
        assert reply.exit_code == 0
        assert elapsed.seconds() < 60
        assert ["0 of 64 entries free" in line for line in reply.log] == [True]
        assert len(recorded(node, pod)) == 2  # the earlier address holds the last two entries
        node.ok("DEL", pod)


def test_a_table_with_room_for_one_address_of_two(node: Node, shared: None, hca: str, pod: Pod) -> None:
    """ADD notices the lack only after it has set the addresses, and undoes them."""
    with filled(hca, PF, free=4):
        error = node.refused("ADD", pod, macvlan(node, rdma={"required": True, "gidTimeout": 60}))
        assert (error["code"], "0 of 64 entries free" in error["msg"]) == (110, True)
        assert (pod.links(), node.state_files()) == (set(), set())
