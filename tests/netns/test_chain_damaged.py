"""DEL in chain mode, where a chain or a record of it is damaged."""

from pathlib import Path

from netns.test_chain import add, delete, prepared_claims, refused
from support import chained
from support.topology import Host, Pod

__all__ = ["prepared_claims"]  # a fixture


def test_a_damaged_chain_is_found_by_its_records(host: Host, pod: Pod) -> None:
    chained.prepared(host, pod)
    add(host, pod)
    file = host.state / "chains/cluster" / f"{pod.name}:eth0.json"
    file.write_text(file.read_text()[:-20])
    delete(host, pod)
    assert pod.links() == set()
    assert [Path(name).parts[0] for name in host.state_files()] == ["quarantine"]


def test_a_damaged_record_of_one(host: Host, pod: Pod) -> None:
    """DEL reports it once, and undoes the others and what it finds of the damaged one."""
    chained.prepared(host, pod)
    add(host, pod)
    record = host.state / "attachments/net0" / f"{pod.name}:hpn0.json"
    record.write_text(record.read_text().replace('"mtu":0', '"mtu":1'))
    assert refused(host, "DEL", pod)["code"] == 108
    assert (pod.links(), host.leases()) == (set(), set())
    delete(host, pod)
    assert [Path(name).parts[0] for name in host.state_files()] == ["quarantine"]
