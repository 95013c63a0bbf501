"""Two hundred pods at once."""

from concurrent.futures import ThreadPoolExecutor

from system.machine import Machine, ours

PODS = 200
# The number of concurrent commands: each is two processes and 30 MB of unpacked program, and CI has little memory.
AT_ONCE = 24


def test_two_hundred_pods_in_parallel(machine: Machine) -> None:
    machine.network(ours(ipam={"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]]}))
    pods = [machine.pod() for _ in range(PODS)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda pod: machine.ok("add", pod), pods))
        addresses = [result["ips"][0]["address"] for result in results]
        assert len(set(addresses)) == PODS
        assert [{address} for address in addresses] == [machine.addresses(pod) for pod in pods]
        assert len({result["interfaces"][0]["mac"] for result in results}) == PODS
        list(pool.map(lambda pod: machine.ok("del", pod), pods))
    machine.nothing_held()
