"""The host's end of another pod's interface, as Calico and Cilium create it: real veths, and libcni's cache."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.topology import Host, Pod, ip
from unit.base.state.test_owned import decoded

from base.kernel import budget, rtnl
from base.protocol.errors import LinkUnavailable
from base.state import libcni_cache
from hardware import needed

WIRE = "cali123"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directories of libcni's results: no valid results yet, only malformed ones."""
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "no-result").write_text("[]")
    (folder / "half").write_text("{")
    (folder / "old").write_text(json.dumps({"result": {"interfaces": [7, {"name": 7}]}}))
    monkeypatch.setattr(libcni_cache, "RESULTS", (str(tmp_path / "none"), str(folder)))
    return folder


@pytest.fixture
def neighbour(host: Host, make_pod: Callable[[], Pod], results: Path) -> Pod:
    """A pod with a veth to the host, which has only the kernel's own addresses on its end."""
    pod = make_pod()
    ip("link", "add", WIRE, "type", "veth", "peer", "name", "eth0", "netns", pod.name)
    ip("link", "set", WIRE, "up")
    pod.ip("link", "set", "eth0", "up")
    return pod


def remembered(results: Path, *interfaces: dict[str, str]) -> None:
    """Write a result as libcni 1.1 does."""
    cached = {"kind": "cniCacheV1", "networkName": "k8s-pod-network", "result": {"interfaces": list(interfaces)}}
    (results / "k8s-pod-network-c9-eth0").write_text(json.dumps(cached))


def moved(host: Host) -> dict[str, Any]:
    return host.conf(kind="host-device", master=..., device=WIRE)


def over(host: Host, **keys: Any) -> dict[str, Any]:
    return host.conf(master=WIRE, **keys)


def by_its_namespace(_host: Host, results: Path, pod: Pod) -> None:
    remembered(results, {"name": "eth0", "sandbox": pod.path})


def by_its_name(_host: Host, results: Path, _pod: Pod) -> None:
    remembered(results, {"name": WIRE}, {"name": "eth0", "sandbox": "/run/netns/gone"})


def by_an_attachment(host: Host, _results: Path, pod: Pod) -> None:
    host.ok("ADD", pod, host.conf(name="fabric"), CNI_IFNAME="net1")


def by_an_attachment_that_names_another(host: Host, _results: Path, pod: Pod) -> None:
    """The record keeps cni-args, in which a pod's author may set any key."""
    conf = host.conf(name="fabric", args={"cni": {"netns": "/run/netns/none"}})
    host.ok("ADD", pod, conf, CNI_IFNAME="net1")


@pytest.mark.parametrize(
    "known", [by_its_namespace, by_its_name, by_an_attachment, by_an_attachment_that_names_another]
)
def test_it_is_not_given_away(
    host: Host, make_pod: Callable[[], Pod], results: Path, neighbour: Pod, known: Callable[[Host, Path, Pod], None]
) -> None:
    """ADD refuses the interface itself and a child over it, which could answer as the neighbor's gateway."""
    pod = make_pod()
    known(host, results, neighbour)
    before = host.picture(pod, neighbour)
    for conf in (moved(host), over(host), over(host, mode="passthru")):
        error = host.refused("ADD", pod, conf)
        assert (error["code"], f"{WIRE!r} is the host's end of the interface of another pod" in error["msg"]) == (
            (101, True)
        ), error
        assert host.refused("STATUS", None, conf)["code"] == 50
    assert host.picture(pod, neighbour) == before


@pytest.mark.parametrize("words", [("192.0.2.7/32",), ("fd00::7/128", "proto", "kernel")], ids=["IPv4", "IPv6"])
def test_a_route_says_it_too(host: Host, pod: Pod, neighbour: Pod, words: tuple[str, ...]) -> None:
    """ADD refuses the interface without a result, too, if the host has routes through it to pods."""
    destination, *more = words
    ip(*(("-6",) if ":" in destination else ()), "route", "add", destination, "dev", WIRE, *more)
    before = host.picture(pod, neighbour)
    error = host.refused("ADD", pod, moved(host))
    assert (error["code"], f"the host has routes through {WIRE!r}" in error["msg"], destination in error["msg"]) == (
        (7, True, True)
    ), error
    assert host.picture(pod, neighbour) == before


@pytest.mark.parametrize("damage", [b"\xff", b"\0", b"\\u0000", b"\\ud800"])
def test_a_path_that_no_file_can_have(
    host: Host, make_pod: Callable[[], Pod], results: Path, neighbour: Pod, damage: bytes
) -> None:
    """One in a damaged record, or in another plugin's result, is that of no pod."""
    pod, other = make_pod(), make_pod()
    remembered(results, {"name": "eth0", "sandbox": "/run/\0"}, {"name": "net1", "sandbox": "/run/\ud800"})
    host.ok("ADD", other, host.conf())
    record = host.record(other)
    record.write_bytes(record.read_bytes().replace(b'"netns":"/run', b'"netns":"/run' + damage))
    host.ok("ADD", pod, over(host, ipam={"type": "hpn-ipam", "subnet": "10.58.0.0/24"}))


def test_one_that_leads_where_no_pod_is(host: Host, pod: Pod, results: Path, neighbour: Pod) -> None:
    """ADD accepts a veth to a namespace without a pod, such as a router's, as device and as master."""
    remembered(results, {"name": "eth0", "sandbox": pod.path}, {"name": "cali9"})
    for conf in (over(host), moved(host)):
        host.ok("ADD", pod, conf)
        host.ok("DEL", pod, conf)
    assert neighbour.links() == {"eth0"}


def test_what_a_worker_remembers(host: Host, make_pod: Callable[[], Pod], results: Path, neighbour: Pod) -> None:
    """It reads each result, record and namespace once, and again after a change."""
    others = [make_pod() for _ in range(8)]
    for number, other in enumerate(others):
        interfaces = [{"name": "eth0", "sandbox": other.path}]
        cached = {"kind": "cniCacheV1", "networkName": "n", "result": {"interfaces": interfaces}}
        (results / f"n-c{number}-eth0").write_text(json.dumps(cached))
        host.ok("ADD", other, host.conf(name=f"fabric{number}", ipam=...), CNI_IFNAME="net1")
    with rtnl.open_in() as sock:
        link = sock.link(WIRE)
        assert link
        budget.begin()

        def ask() -> None:
            needed.refuse_end_of_pair(link, sock, host.state)

        def asked() -> int:
            before = sock.sequence
            ask()
            return sock.sequence - before

        assert (asked() >= len(others), asked(), decoded(ask)) == (True, 0, 0)
        # In place.
        file = results / "n-c3-eth0"
        text = file.read_text()
        file.write_text(text.replace(others[3].path, neighbour.path))
        with pytest.raises(LinkUnavailable, match="network n"):
            ask()
        file.write_text(text)
        assert (asked(), asked()) == (1, 0)
        # Another namespace at the path of one, for which the runtime caches the same result again.
        subprocess.run(["mount", "--bind", neighbour.path, others[3].path], check=True)
        try:
            file.write_text(text)
            for _ in range(2):
                with pytest.raises(LinkUnavailable, match="network n"):
                    ask()
        finally:
            subprocess.run(["umount", others[3].path], check=True)
        assert (asked(), asked()) == (1, 0)
