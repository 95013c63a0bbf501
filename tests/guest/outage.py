"""Run in the guest with --disk, boot after boot: attach VFs and cut the power; the next boot checks recovery from the
state on disk.

    outage lose JOURNAL VERB STEP    attach two, detach one of them, and cut the power just before a step of VERB on
                                     another
    outage recover JOURNAL ANSWERED  check the state after that; ANSWERED is the output of ``lose``

The words of ``lose`` may follow ``recover``: after recovery, the same boot causes the next outage.

The leases are on the disk, as by default; the journal is on the disk or in memory ("disk", "memory").  The plugin's
answers are printed at once, so they are outside the guest before the power fails.
"""

import json
import sys
from pathlib import Path
from typing import Any

from guest.node import MAC, NAME, PF, Node, netdev, pci, vf
from guest.qmp import Monitor
from support.killing import at_step
from support.topology import Pod, ip, leases

DISK = Path("/run/lab/disk")
# As many as there are VFs on both PFs.
POOL = {
    "type": "hpn-ipam",
    "dataDir": str(DISK / "ipam"),
    "ranges": [[{"subnet": "10.56.0.0/28", "rangeStart": "10.56.0.2", "rangeEnd": "10.56.0.9"}]],
}
VFS = [f"rail{rail}v{number}" for rail in range(2) for number in range(4)]
CHANGES = {"vlan": 7, "spoofchk": "off", "trust": "on", "mtu": 1400}


def made(name: str) -> Pod:
    pod = Pod(f"hpn-outage-{name}")
    ip("netns", "add", pod.name)
    return pod


def conf(node: Node, device: str, **keys: Any) -> dict[str, Any]:
    return node.conf(deviceID=device, ipam=POOL, **keys)


def attach(node: Node, pod: Pod, device: str, **keys: Any) -> set[str]:
    result = node.ok("ADD", pod, conf(node, device, **keys))
    return {i["address"].partition("/")[0] for i in result["ips"]}


def leased() -> set[str]:
    return {address.partition("/")[0] for lease in leases(DISK / "ipam") for address in lease["addresses"]}


def lose(node: Node, verb: str, step: int) -> None:
    devices = [pci(name) for name in VFS]
    stays, left, last = (made(name) for name in ("stays", "left", "last"))
    answered = sorted(attach(node, stays, devices[0], **CHANGES))
    attach(node, left, devices[1], **CHANGES)
    node.ok("DEL", left, conf(node, devices[1]))
    print(json.dumps(answered), flush=True)
    if verb == "DEL":
        attach(node, last, devices[2], **CHANGES)
    with Monitor() as monitor:
        at_step(step, monitor.power_off)
        node.ok(verb, last, conf(node, devices[2], **CHANGES))
    raise AssertionError(f"{verb} has fewer than {step} steps")


def recover(node: Node, answered: set[str]) -> None:
    devices = [pci(name) for name in VFS]
    names = {path.name.partition(":")[0] for path in node.state.glob("attachments/*/*.json")}
    expected = {"hpn-outage-stays"} if node.state.is_relative_to(DISK) else set()
    assert names in (expected, expected | {"hpn-outage-last"}), names
    # An address is free once DEL has confirmed it; an interrupted command may hold its address or not.
    held = leased()
    assert answered <= held
    assert len(held) <= 2
    # The older boot's records list the first VF as attached; in this boot it belongs to the host.
    was = netdev()
    ip("link", "set", PF, "vf", "0", "vlan", "9")
    ip("link", "set", NAME, "address", MAC, "mtu", "1300", "name", "mine", "up")
    mine = netdev("mine"), vf()

    new = made("new")
    assert attach(node, new, devices[2]).isdisjoint(held)
    # kubelet deletes the sandboxes that it remembers, and a runtime collects the rest by GC.
    node.ok("DEL", Pod("hpn-outage-stays"), conf(node, devices[0]))
    valid = [{"containerID": new.name, "ifname": "hpn0"}]
    node.ok("GC", None, conf(node, devices[0]) | {"cni.dev/valid-attachments": valid})
    assert [path.name for path in node.state.glob("attachments/*/*.json")] == [f"{new.name}:hpn0.json"]
    assert (len(leased()), (new.link() or {})["parentdev"]) == (1, devices[2])
    assert (netdev("mine"), vf()) == mine
    node.ok("DEL", new, conf(node, devices[2]))
    assert (node.state_files(), leased()) == (set(), set())

    ip("link", "set", PF, "vf", "0", "vlan", "0")
    ip("link", "set", "mine", "down", "name", NAME, "address", was["address"], "mtu", f"{was['mtu']}")
    pods = [made(f"{n}") for n in range(len(devices))]
    addresses = [attach(node, pod, device) for pod, device in zip(pods, devices, strict=True)]
    assert len(set().union(*addresses)) == len(devices)
    for pod, device in zip(pods, devices, strict=True):
        node.ok("DEL", pod, conf(node, device))
    assert (node.state_files(), leased()) == (set(), set())


def main(words: list[str]) -> None:
    match words:
        case ["recover", journal, answered, *words]:
            recover(node_of(journal), set(json.loads(answered)))
    match words:
        case ["lose", journal, verb, step]:
            lose(node_of(journal), verb, int(step))


def node_of(journal: str) -> Node:
    return Node(DISK if journal == "disk" else Path("/run/outage"))


if __name__ == "__main__":
    main(sys.argv[1:])
