"""rps selects the processors for an interface's received packets.  tests/lab/test_steering.py covers interrupts."""

import os
import subprocess
from typing import Any

import drawn
import pytest
from support.killing import killed_at
from support.namespaces import with_both
from support.topology import Host, Pod, ip

LAST = os.cpu_count() or 1  # the number of processors in a full mask
EVERY = f"{(1 << LAST) - 1:x}"
QUEUE = "queues/rx-0/rps_cpus"


def mask(text: str) -> str:
    """The mask without the kernel's leading zeros and commas."""
    return text.strip().replace(",", "").lstrip("0") or "0"


def in_pod(pod: Pod, name: str = "hpn0") -> str:
    """The mask in the pod's own /sys, which ip netns exec mounts."""
    return mask(pod.run("cat", f"/sys/class/net/{name}/{QUEUE}").stdout)


def at_home(command: str = f"cat /sys/class/net/eth9/{QUEUE}") -> str:
    """The mask in the host's /sys."""
    script = f"mount -t sysfs sysfs /sys && {command}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=True)
    return mask(done.stdout)


@pytest.fixture
def eth9(host: Host) -> None:
    """An interface of the host; its queue is set to the first processor."""
    ip("link", "add", "eth9", "type", "veth", "peer", "name", "far9")
    at_home(f"echo 1 > /sys/class/net/eth9/{QUEUE}")


def moving(host: Host, **keys: Any) -> dict[str, Any]:
    return host.conf(**{"kind": "host-device", "master": ..., "device": "eth9", "rps": f"0-{LAST - 1}"} | keys)


@with_both
@pytest.mark.parametrize("cpus", [f"0-{LAST - 1}", "0"])
def test_of_a_link_for_the_pod(host: Host, pod: Pod, kind: str, cpus: str) -> None:
    conf = host.conf(kind=kind, rps=cpus)
    result = host.ok("ADD", pod, conf)
    assert in_pod(pod) == ("1" if cpus == "0" else EVERY)
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)


@with_both
def test_an_interface_goes_home_as_it_was(host: Host, pod: Pod, eth9: None) -> None:
    host.ok("ADD", pod, moving(host))
    assert in_pod(pod) == EVERY
    host.ok("DEL", pod, moving(host))
    assert at_home() == "1"


def test_what_somebody_has_changed_since_stays(host: Host, pod: Pod, eth9: None) -> None:
    host.ok("ADD", pod, moving(host))
    pod.run("sh", "-c", f"echo 0 > /sys/class/net/hpn0/{QUEUE}")
    host.ok("DEL", pod, moving(host))
    assert at_home() == "0"


def test_whatever_the_pod_calls_it(host: Host, pod: Pod, eth9: None) -> None:
    host.ok("ADD", pod, moving(host))
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "mine0")
    host.ok("DEL", pod, moving(host))
    assert at_home() == "1"


def test_check_compares(host: Host, pod: Pod) -> None:
    conf = host.conf(rps="0")
    result = host.ok("ADD", pod, conf)
    pod.run("sh", "-c", f"echo 0 > /sys/class/net/hpn0/{QUEUE}")
    reply = host.checked(pod, conf, result)
    assert reply.exit_code
    assert "rps of rx-0 of hpn0 is 0" in reply.stdout
    host.ok("DEL", pod, conf)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_every_step(host: Host, pod: Pod, eth9: None, command: str) -> None:
    for step in drawn.steps():
        if command == "DEL":
            host.ok("ADD", pod, moving(host))
        killed = killed_at(step, host.request(command, pod, moving(host)))
        host.ok("DEL", pod, moving(host))
        assert at_home() == "1", f"not as it was after step {step}"
        assert host.state_files() == set()
        if not killed:
            break
    assert step > 10


@pytest.mark.parametrize(
    ("keys", "code", "says"),
    [
        ({"rps": "0-8191"}, 7, "rps '0-8191': this node has no processor "),
        ({"rps": "x"}, 7, "is not a list of processors; write 0-3,8"),
        ({"rps": "numa"}, 101, "rps 'numa': the interface has no PCI device whose NUMA node is known; write a list"),
        ({"irqAffinity": "0"}, 2, "irqAffinity"),
    ],
)
def test_refused(host: Host, pod: Pod, keys: dict[str, str], code: int, says: str) -> None:
    before = host.picture(pod)
    reply = host.call("ADD", pod, host.conf(**keys))
    assert f'"code":{code}' in reply.stdout
    assert says in reply.stdout
    assert host.picture(pod) == before
    assert host.state_files() == set()


def test_no_interrupts_of_its_own(host: Host, pod: Pod, eth9: None) -> None:
    conf = moving(host, irqAffinity="0")
    reply = host.call("ADD", pod, conf)
    assert '"code":101' in reply.stdout
    assert "has no interrupts of its own; remove irqAffinity" in reply.stdout
    assert at_home() == "1"
    host.ok("DEL", pod, conf)
