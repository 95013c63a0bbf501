"""The names of interfaces in chain mode, beside those of Multus."""

from collections.abc import Callable
from dataclasses import replace

from netns.test_chain import add, conf, delete, prepared_claims, variables
from support import chained
from support.topology import Host, Pod

from base.state import claims

__all__ = ["prepared_claims"]  # a fixture


def test_names_of_interfaces(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    """A device without a name gets the first one that no claim of its pod names, in every sandbox the same."""
    shared = [{"ipam": {"type": "hpn-ipam", "subnet": f"10.56.{n}.0/24"}} for n in (0, 1)]
    unnamed = [chained.device(host, n, config=config, interface="") for n, config in enumerate(shared)]
    chained.prepared(host, pod, unnamed, "a")
    named = chained.device(host, 1, config={"name": "net2", **shared[1]}, interface="claim0")
    by_multus = chained.device(host, 1, attach="multus", interface="claim1", config={})
    chained.prepared(host, pod, [named, by_multus], "b")
    for _ in range(2):
        add(host, pod)
        assert pod.links() == {"claim0", "claim2", "claim3"}
        assert host.call("CHECK", pod, conf(host), **variables(pod)).exit_code == 0
        delete(host, pod)
    # A claim of two pods, and one of its own: each pod counts for itself.
    joining = make_pod()
    both = chained.prepared(host, pod, [replace(unnamed[0], device="s")], "c")
    claims.save(replace(both, pods=(*both.pods, chained.uid(joining))))
    chained.prepared(host, joining, [unnamed[1]], "d")
    add(host, joining)
    assert joining.links() == {"claim0", "claim1"}
    delete(host, joining)


def test_the_name_of_multuss_first_interface(host: Host, pod: Pod) -> None:
    """Multus attaches the pod's own networks after the cluster's, and names the first one net1."""
    chained.prepared(host, pod, [chained.device(host, 0, interface="")])
    add(host, pod)
    own, environ = host.conf(name="own", ipam=...), variables(pod) | {"CNI_IFNAME": "net1"}
    host.ok("ADD", pod, own, **environ)
    assert pod.links() == {"claim0", "net1"}
    host.ok("DEL", pod, own, **environ)
    delete(host, pod)
