"""sysctl: ADD sets them in the pod's namespace, and DEL restores them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.disks import mounted
from support.namespaces import with_both
from support.topology import Host, Pod

SOMAXCONN = "core/somaxconn"
RP_FILTER = "ipv4/conf/hpn0/rp_filter"

pytestmark = with_both


def tuned(host: Host, **sysctls: Any) -> dict[str, Any]:
    return host.conf(sysctl={key.replace("__", "."): value for key, value in sysctls.items()})


@pytest.fixture
def allowlist(tmp_path: Path) -> Iterator[Path]:
    """The node's allowlist, on a file system of this test alone."""
    folder = Path("/etc/cni/tuning")
    if folder.exists():
        pytest.skip(f"{folder} is this machine's own")
    made = [p for p in (folder, folder.parent) if not p.exists()]
    folder.parent.mkdir(exist_ok=True)
    try:
        with mounted(folder):
            yield folder / "allowlist.conf"
    finally:
        for path in made:
            path.rmdir()


@pytest.mark.parametrize(
    "names",
    [
        ("net.core.somaxconn", "net.ipv4.conf.IFNAME.rp_filter", "net.ipv6.conf.IFNAME.accept_ra"),
        ("net/core/somaxconn", "net/ipv4/conf/IFNAME/rp_filter", "net/ipv6/conf/IFNAME/accept_ra"),
        ("net.core.somaxconn", "net.ipv4.conf.hpn0.rp_filter", "net/ipv6/conf/hpn0/accept_ra"),
    ],
)
def test_set_and_put_back(host: Host, pod: Pod, kind: str, names: tuple[str, ...]) -> None:
    before = pod.sysctl(SOMAXCONN)
    conf = host.conf(kind=kind, sysctl=dict(zip(names, ("1024", "2", "0"), strict=True)))
    result = host.ok("ADD", pod, conf)
    assert pod.sysctl(SOMAXCONN) == "1024" != before
    assert pod.sysctl(RP_FILTER) == "2"
    assert pod.sysctl("ipv6/conf/hpn0/accept_ra") == "0"
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert pod.sysctl(SOMAXCONN) == before


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_of_its_neighbours(host: Host, pod: Pod, family: str) -> None:
    """Sysctls of neighbors work although a pod's namespace has no defaults for them."""
    conf = host.conf(sysctl={f"net.{family}.neigh.IFNAME.mcast_solicit": "5"})
    result = host.ok("ADD", pod, conf)
    assert pod.sysctl(f"{family}/neigh/hpn0/mcast_solicit") == "5"
    assert host.checked(pod, conf, result).exit_code == 0


def test_an_interface_with_a_dot(host: Host, pod: Pod) -> None:
    conf = tuned(host, net__ipv4__conf__IFNAME__rp_filter="2", **{"net.ipv4.conf.rail/5.arp_ignore": "1"})
    host.ok("ADD", pod, conf, CNI_IFNAME="rail.5")
    assert pod.sysctl("ipv4/conf/rail.5/rp_filter") == "2"
    assert pod.sysctl("ipv4/conf/rail.5/arp_ignore") == "1"
    host.ok("DEL", pod, conf, CNI_IFNAME="rail.5")


def test_ours_give_way(host: Host, pod: Pod) -> None:
    conf = tuned(host, net__ipv4__conf__IFNAME__arp_notify="0")
    host.ok("ADD", pod, conf)
    assert pod.sysctl("ipv4/conf/hpn0/arp_notify") == "0"
    host.ok("DEL", pod, conf)


def test_values_as_the_kernel_has_them(host: Host, pod: Pod) -> None:
    """CHECK compares values in the kernel's spelling."""
    conf = tuned(
        host,
        net__core__somaxconn="0x400",
        net__ipv4__tcp_rmem="4096   87380 6291456",
        net__ipv4__ip_local_reserved_ports="8080,1-3",
    )
    before = pod.sysctl("ipv4/tcp_rmem")
    result = host.ok("ADD", pod, conf)
    assert pod.sysctl(SOMAXCONN) == "1024"
    assert pod.sysctl("ipv4/tcp_rmem").split() == ["4096", "87380", "6291456"] != before.split()
    assert pod.sysctl("ipv4/ip_local_reserved_ports") == "1-3,8080"
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert pod.sysctl("ipv4/tcp_rmem") == before
    assert pod.sysctl("ipv4/ip_local_reserved_ports") == ""  # an empty value counts, too


@pytest.mark.parametrize(("key", "path"), [("net.core.somaxconn", SOMAXCONN), (f"net/{RP_FILTER}", RP_FILTER)])
def test_check_compares(host: Host, pod: Pod, key: str, path: str) -> None:
    conf = tuned(host, **{key: "2"})
    result = host.ok("ADD", pod, conf)
    pod.sysctl(path, "1")
    error = host.refused("CHECK", pod, conf | {"prevResult": result})
    assert error["code"] == 107
    assert path.replace("/", ".") in error["msg"]
    host.ok("DEL", pod, conf)


def test_what_was_changed_since_stays(host: Host, pod: Pod) -> None:
    conf = tuned(host, net__core__somaxconn="1024")
    host.ok("ADD", pod, conf)
    pod.sysctl(SOMAXCONN, "555")
    host.ok("DEL", pod, conf)
    assert pod.sysctl(SOMAXCONN) == "555"


@pytest.mark.parametrize("first", ["hpn0", "hpn1"])
def test_two_attachments_of_a_pod(host: Host, pod: Pod, first: str) -> None:
    """The last DEL in either order restores the value from before the first ADD."""
    before = pod.sysctl(SOMAXCONN)
    conf = tuned(host, net__core__somaxconn="1024")
    for ifname in ("hpn0", "hpn1"):
        host.ok("ADD", pod, conf, CNI_IFNAME=ifname)
    host.ok("DEL", pod, conf, CNI_IFNAME=first)
    assert pod.sysctl(SOMAXCONN) == "1024"
    host.ok("DEL", pod, conf, CNI_IFNAME="hpn1" if first == "hpn0" else "hpn0")
    assert pod.sysctl(SOMAXCONN) == before


def test_two_attachments_that_go_at_once(host: Host, pod: Pod) -> None:
    """DEL restores the value although another attachment's record still exists, with an IPAM that has not answered or
    never will."""
    before, path = pod.sysctl(SOMAXCONN), host.giving(ips=[{"address": "10.56.0.2/24"}])
    keys = {"sysctl": {"net.core.somaxconn": "1024", "net.ipv4.conf.IFNAME.rp_filter": "2"}}
    host.ok("ADD", pod, host.conf(**keys, ipam={"type": "script"}), CNI_PATH=path)
    host.ok("ADD", pod, host.conf(**keys), CNI_IFNAME="hpn1")
    host.refused("DEL", pod, host.conf(**keys, ipam={"type": "script"}), CNI_PATH="/nonexistent")
    assert pod.sysctl(SOMAXCONN) == "1024"
    host.ok("DEL", pod, host.conf(**keys), CNI_IFNAME="hpn1")
    assert pod.sysctl(SOMAXCONN) == before
    pod.sysctl(SOMAXCONN, "1024")  # a later change from outside
    host.ok("DEL", pod, host.conf(**keys, ipam={"type": "script"}), CNI_PATH=path)
    assert pod.sysctl(SOMAXCONN) == "1024"


def test_two_attachments_that_disagree(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod, tuned(host, net__core__somaxconn="1024"))
    conf = tuned(host, net__core__somaxconn="2048") | {"name": "other"}
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf, CNI_IFNAME="hpn1")
    assert error["code"] == 7
    assert all(word in error["msg"] for word in ("net.core.somaxconn", "'2048'", "'1024'", "hpn0"))
    assert host.picture(pod) == before
    host.ok("DEL", pod)


@pytest.mark.parametrize(
    ("key", "code", "said"),
    [
        ("net.core.nonesuch", 7, "No such file"),
        ("net.ipv4.conf.IFNAME.rp_fliter", 7, "No such file"),
        ("net.ipv4.conf.absent.rp_filter", 7, "No such file"),
        ("net.core.rmem_max", 7, "'net.core.rmem_max'"),  # the host's value, which pods see read-only or not at all
        ("net.core", 7, "directory"),
        ("net.ipv4.route.flush", 7, "ermission"),  # write-only, so DEL could not restore it
        ("net.ipv4.tcp_rmem", 105, "writing 'x'"),
        ("net.ipv4.conf.IFNAME.rp_filter", 105, "writing 'x'"),
    ],
)
def test_refused_and_nothing_left(host: Host, pod: Pod, key: str, code: int, said: str) -> None:
    conf = tuned(host, net__core__somaxconn="1024", **{key: "x"})
    before = host.picture(pod), pod.sysctl(SOMAXCONN)
    error = host.refused("ADD", pod, conf)
    assert error["code"] == code
    assert said in error["msg"]
    assert key.rpartition(".")[2] in error["msg"]
    after = host.picture(pod), pod.sysctl(SOMAXCONN)
    assert (after[0] | {"state": []}, after[1]) == (before[0] | {"state": []}, before[1])
    assert host.state_files() == set()


def test_two_names_of_one(host: Host, pod: Pod) -> None:
    conf = tuned(host, net__ipv4__conf__hpn0__rp_filter="1", **{"net/ipv4/conf/IFNAME/rp_filter": "2"})
    error = host.refused("ADD", pod, conf)
    assert error["code"] == 7
    assert "'net/ipv4/conf/IFNAME/rp_filter' and 'net.ipv4.conf.hpn0.rp_filter'" in error["msg"]


def test_the_nodes_list(host: Host, pod: Pod, allowlist: Path) -> None:
    """The node's list consists of regular expressions, as for tuning, and applies to either spelling of a name."""
    allowlist.write_text("^net\\.ipv4\\.conf\\.IFNAME\\.rp_filter$\n\n  ^net.core.somaxconn$ \n")
    good = {"net/ipv4/conf/IFNAME/rp_filter": "2", "net.core.somaxconn": "1024"}
    host.ok("ADD", pod, tuned(host, **good))
    host.ok("STATUS", None, tuned(host, **good))
    host.ok("DEL", pod, tuned(host, **good))
    for key in ("net.ipv4.conf.IFNAME.arp_ignore", "net/ipv4/conf/hpn0/rp_filter"):
        bad = tuned(host, **good, **{key: "1"})
        error = host.refused("ADD", pod, bad)
        assert error["code"] == 7
        assert key in error["msg"]
        assert str(allowlist) in error["msg"]
        assert host.refused("STATUS", None, bad)["code"] == 50
    allowlist.write_text("net.(\n")
    error = host.refused("ADD", pod, tuned(host, **good))
    assert error["code"] == 7
    assert "'net.('" in error["msg"]
    assert pod.links() == set()


def test_nothing_is_restored_in_another_namespace(host: Host, pod: Pod) -> None:
    conf = tuned(host, net__core__somaxconn="1024")
    host.ok("ADD", pod, conf)
    pod.remade()
    pod.sysctl(SOMAXCONN, "1024")
    host.ok("DEL", pod, conf)
    assert pod.sysctl(SOMAXCONN) == "1024"
