"""Fourteen processes at a time attach and detach VFs of eight PFs; run by name, in a guest with eight NICs."""

import time
from collections.abc import Callable
from typing import Any

import drawn
from guest.machine import nics
from guest.node import Node, rdma_devs
from guest.processes import at_once
from support.topology import Pod, ip

HALF = 7
ROUNDS, SECONDS = 40, 120.0  # whichever comes first


def everything() -> list[dict[str, Any]]:
    """Every link with the attributes that an attachment may change, and every VF as its PF reports it."""
    keys = ("ifname", "address", "mtu", "txqlen", "ifalias", "altnames", "promiscuity", "vfinfo_list")
    links = ip("-d", "link")
    return sorted(({k: link.get(k) for k in keys} | {"up": "UP" in link["flags"]} for link in links), key=str)


def test_pods_come_and_go(node: Node, make_pod: Callable[[], Pod]) -> None:
    """Half of the pods attach while the other half detach; each gets all its devices from one function."""
    pfs = list(nics.pfs())
    rails = [pf.netdev for pf in pfs]
    rdma_of = {vf.address: vf.rdma for pf in pfs for vf in pf.vfs}
    last_vf = [pf.vfs[-1].address for pf in pfs]
    assert (len(pfs), len(rdma_of)) == (8, 56)
    halves = [[make_pod() for _ in range(HALF)] for _ in range(2)]
    before, started = everything(), time.monotonic()

    def wish(n: int, i: int) -> dict[str, Any]:
        """Five want any VF of one PF, one any VF of another PF, one a VF that no other wants."""
        which = (
            {"deviceID": last_vf[n % 8]} if i == 6 else {"deviceID": ..., "pf": rails[n % 8 if i < 5 else (n + 3) % 8]}
        )
        return node.conf(**which, vlan=n + 1, mac=f"02:00:00:00:{n:02x}:{i:02x}")

    n, coming, rounds = 0, list[Pod](), drawn.count(ROUNDS, "rounds under load")
    while n == 0 or coming:
        going, over = coming, n == rounds or time.monotonic() - started > SECONDS
        coming = [] if over else halves[n % 2]
        requests = [node.request("ADD", pod, wish(n, i)) for i, pod in enumerate(coming)]
        requests += [node.request("DEL", pod, wish(n - 1, i)) for i, pod in enumerate(going)]
        replies = at_once([*requests[::2], *requests[1::2]])
        assert [reply.stdout for reply in replies if reply.exit_code] == []
        devices = [(pod.link() or {})["parentdev"] for pod in coming]
        assert len(set(devices)) == len(coming)
        assert [rdma_devs(pod.name) for pod in coming] == [{rdma_of[device]} for device in devices]
        assert [pod.links() for pod in going] == [set()] * len(going)
        assert len(node.leases()) == 2 * len(coming)
        n += 1
    took = time.monotonic() - started
    assert everything() == before
    assert node.state_files() == set()
    print(f"{(n - 1) * HALF} attachments and as many detachments, {2 * HALF} at a time, in {took:.0f} s")
    assert n > 2
