"""What cannot be served is refused with a code, a message that names key, value and remedy, and no trace."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from topology import Host, Pod, ip, mounted, read_only

# What has to be so before the request; what it returns is set in the environment.
Setup = Callable[[Host, Pod, ExitStack], dict[str, str] | None]


@dataclass(frozen=True)
class Bad:
    """A request, why it is bad, and the answer: its code and what its message, and its details, have to say."""

    why: str
    code: int
    says: tuple[str, ...]
    keys: Mapping[str, Any] | bytes = field(default_factory=dict)
    environ: Mapping[str, Any] = field(default_factory=dict)
    command: str = "ADD"
    setup: Setup | None = None
    details: str = ""


def ipam(**keys: Any) -> dict[str, Any]:
    return {"ipam": {"type": "hpn-ipam"} | keys}


def subnet(**keys: Any) -> dict[str, Any]:
    return ipam(subnet="10.56.0.0/24", **keys)


def ranges(*sets: list[dict[str, Any]]) -> dict[str, Any]:
    return ipam(ranges=list(sets))


def runtime(**keys: Any) -> dict[str, Any]:
    return {"runtimeConfig": keys}


def cni_args(**keys: Any) -> dict[str, Any]:
    return {"args": {"cni": keys}}


ROOT = Path(__file__).parents[2]
SCRIPT = {"ipam": {"type": "script"}}
ITSELF = {"ipam": {"type": "hpn"} | {"subnet": "10.56.0.0/24"}}
V4 = {"subnet": "10.56.0.0/24"}
ENVIRONMENT = [
    Bad("no command", 4, ("CNI_COMMAND", "ADD"), command=""),
    Bad("no such command", 4, ("CNI_COMMAND", "'ATTACH'", "ADD"), command="ATTACH"),
    Bad("lower case", 4, ("CNI_COMMAND", "'add'", "ADD"), command="add"),
    Bad("ADD without container", 4, ("CNI_CONTAINERID",), environ={"CNI_CONTAINERID": ...}),
    Bad("ADD without namespace", 4, ("CNI_NETNS",), environ={"CNI_NETNS": ""}),
    Bad("ADD without name", 4, ("CNI_IFNAME",), environ={"CNI_IFNAME": ...}),
    Bad(
        "ADD without anything: all of it is named at once",
        4,
        ("CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME",),
        environ={"CNI_CONTAINERID": ..., "CNI_NETNS": ..., "CNI_IFNAME": ...},
    ),
    Bad("DEL without container", 4, ("CNI_CONTAINERID",), environ={"CNI_CONTAINERID": ""}, command="DEL"),
    Bad("DEL without name", 4, ("CNI_IFNAME",), environ={"CNI_IFNAME": ""}, command="DEL"),
    Bad("CHECK without container", 4, ("CNI_CONTAINERID",), environ={"CNI_CONTAINERID": ""}, command="CHECK"),
    Bad("CHECK without namespace", 4, ("CNI_NETNS",), environ={"CNI_NETNS": ""}, command="CHECK"),
    Bad("GC without path", 4, ("CNI_PATH",), environ={"CNI_PATH": ...}, command="GC"),
    Bad("container with a slash", 4, ("CNI_CONTAINERID", "'a/b'"), environ={"CNI_CONTAINERID": "a/b"}),
    Bad("container that climbs", 4, ("CNI_CONTAINERID", "'..'"), environ={"CNI_CONTAINERID": ".."}),
    Bad("container that climbs, at DEL", 4, ("'../x'",), environ={"CNI_CONTAINERID": "../x"}, command="DEL"),
    Bad("container too long for a file", 4, ("CNI_CONTAINERID", "220"), environ={"CNI_CONTAINERID": "a" * 221}),
    Bad("name too long", 4, ("CNI_IFNAME", "'hpn0123456789abc'", "15"), environ={"CNI_IFNAME": "hpn0123456789abc"}),
    Bad("name too long in bytes", 4, ("CNI_IFNAME", "15"), environ={"CNI_IFNAME": "ä" * 8}),
    Bad("name with a slash", 4, ("CNI_IFNAME", "'a/b'", "'/'"), environ={"CNI_IFNAME": "a/b"}),
    Bad("name with a colon", 4, ("CNI_IFNAME", "'a:1'", "':'"), environ={"CNI_IFNAME": "a:1"}),
    Bad("name with a space", 4, ("CNI_IFNAME", "'a b'", "white space"), environ={"CNI_IFNAME": "a b"}),
    Bad("name that is a directory", 4, ("CNI_IFNAME", "'..'"), environ={"CNI_IFNAME": ".."}),
    Bad("name that the kernel would complete", 4, ("CNI_IFNAME", "'hpn%d'", "%"), environ={"CNI_IFNAME": "hpn%d"}),
    Bad("name that is no text", 4, ("CNI_IFNAME",), environ={"CNI_IFNAME": "hpn\udcff"}),
    Bad("CNI_ARGS without a value", 4, ("CNI_ARGS", "'MAC'", "KEY=VALUE"), environ={"CNI_ARGS": "MAC"}),
    Bad("CNI_ARGS with two values", 4, ("CNI_ARGS", "'A=b=c'"), environ={"CNI_ARGS": "A=b=c"}),
    Bad("CNI_ARGS without a key", 4, ("CNI_ARGS", "'=b'"), environ={"CNI_ARGS": "=b"}),
    Bad(
        "CNI_ARGS with an unknown key",
        4,
        ("CNI_ARGS", "COLOUR='blue'", "IgnoreUnknown=1"),
        environ={"CNI_ARGS": "IgnoreUnknown=0;COLOUR=blue"},
    ),
    Bad("namespace is nowhere", 4, ("CNI_NETNS", "/run/netns/no-such"), environ={"CNI_NETNS": "/run/netns/no-such"}),
    Bad("namespace is a file", 4, ("CNI_NETNS", "/etc/hostname"), environ={"CNI_NETNS": "/etc/hostname"}),
    Bad("namespace is a directory", 4, ("CNI_NETNS", "'/'"), environ={"CNI_NETNS": "/"}),
    Bad("namespace of another type", 4, ("CNI_NETNS", "ns/mnt"), environ={"CNI_NETNS": "/proc/self/ns/mnt"}),
    Bad("our own namespace", 8, ("CNI_NETNS", "/proc/self/ns/net"), environ={"CNI_NETNS": "/proc/self/ns/net"}),
]
STDIN = [
    Bad("nothing", 6, ("stdin", "JSON"), b""),
    Bad("half an object", 6, ("stdin", "JSON"), b'{"cniVersion": "1.1.0", "name": '),
    Bad("two objects", 6, ("stdin", "JSON"), b'{"cniVersion": "1.1.0"}{"cniVersion": "1.1.0"}'),
    Bad("a list", 6, ("stdin", "list", "object"), b"[]"),
    Bad("a string", 6, ("stdin", "str", "object"), b'"rail0"'),
    Bad("null", 6, ("stdin", "object"), b"null"),
    Bad("no text", 6, ("stdin", "JSON"), b"\xff\xfe\x00"),
    Bad("YAML", 6, ("stdin", "JSON"), b"cniVersion: 1.1.0\nname: rail0\n"),
    Bad("nested too deep", 6, ("stdin", "JSON"), b"[" * 200_000),
    Bad("not JSON, at DEL", 6, ("stdin", "JSON"), b"oops", command="DEL"),
    Bad("not JSON, at CHECK", 6, ("stdin", "JSON"), b"oops", command="CHECK"),
    Bad("not JSON, at GC", 6, ("stdin", "JSON"), b"oops", command="GC"),
    Bad("not JSON, at STATUS", 6, ("stdin", "JSON"), b"oops", command="STATUS"),
]
VERSION = [
    Bad("a version to come", 1, ("cniVersion", "'2.0.0'", "1.1.0"), {"cniVersion": "2.0.0"}),
    Bad("a version without interfaces", 1, ("cniVersion", "'0.2.0'", "0.3.1"), {"cniVersion": "0.2.0"}),
    Bad("no version, which means 0.1.0", 1, ("cniVersion", "0.1.0", '"cniVersion": "1.0.0"'), {"cniVersion": ...}),
    Bad("a version that is a number", 1, ("cniVersion", "1.1"), {"cniVersion": 1.1}),
    Bad("a version that is a list", 1, ("cniVersion",), {"cniVersion": ["1.1.0"]}),
    Bad("a wrong version, at DEL", 1, ("cniVersion", "'7'"), {"cniVersion": "7"}, command="DEL"),
    Bad("CHECK before it was", 1, ("'0.3.1'", "CHECK", "0.4.0"), {"cniVersion": "0.3.1"}, command="CHECK"),
    Bad("GC before it was", 1, ("'1.0.0'", "GC", "1.1.0"), {"cniVersion": "1.0.0"}, command="GC"),
    Bad("STATUS before it was", 1, ("'1.0.0'", "STATUS", "1.1.0"), {"cniVersion": "1.0.0"}, command="STATUS"),
]
CONFIGURATION = [
    Bad("no network name", 7, ("name", "None"), {"name": ...}),
    Bad("a network name that climbs", 7, ("name", "'../x'", "letters"), {"name": "../x"}),
    Bad("a network name that climbs, at DEL", 7, ("name", "'../x'"), {"name": "../x"}, command="DEL"),
    Bad("a network name that is a number", 7, ("name", "5"), {"name": 5}),
    Bad("a network name too long for a directory", 7, ("name",), {"name": "a" * 256}),
    Bad("mtu above the master's", 7, ("mtu 1501", "1500", "'rail0'", "lower"), {"mtu": 1501}),
    Bad("mtu negative", 7, ("mtu -1", "0"), {"mtu": -1}),
    Bad("mtu a string", 7, ("mtu", '"1500"', "integer"), {"mtu": "1500"}),
    Bad("mtu a truth", 7, ("mtu", "true", "integer"), {"mtu": True}),
    Bad("mtu without end", 7, ("mtu", "Infinity"), {"mtu": float("inf")}),
    Bad("mtu too small for any packet", 105, ("mtu", "minimum"), {"mtu": 10}, details="macvlan hpn0 over rail0"),
    Bad("mode unknown", 7, ("mode", '"fast"', "bridge"), {"mode": "fast"}),
    Bad("mode of another kind", 7, ("mode", '"l2"', "bridge"), {"mode": "l2"}),
    Bad("kind unknown", 7, ("kind", "'teleport'", "macvlan"), {"kind": "teleport"}),
    Bad("kind not a string", 7, ("kind", "['macvlan']"), {"kind": ["macvlan"]}),
    Bad("dad unknown", 7, ("dad", '"maybe"', "optimistic"), {"dad": "maybe"}),
    Bad("dns not an object", 7, ("dns", '"192.0.2.1"', "dictionary"), {"dns": "192.0.2.1"}),
    Bad("bcqueuelen negative", 7, ("bcqueuelen -1",), {"bcqueuelen": -1}),
    Bad("bcqueuelen too long for the kernel", 7, ("bcqueuelen 4294967296", "4294967295"), {"bcqueuelen": 2**32}),
    Bad("linkInContainer a string", 7, ("linkInContainer", '"yes"', "bool"), {"linkInContainer": "yes"}),
    Bad("strict a string", 7, ("strict", '"no"', "bool"), {"strict": "no"}),
    Bad("master not a name", 7, ("master", '"a/b"', "'/'"), {"master": "a/b"}),
    Bad("master a number", 7, ("master", "0", "string"), {"master": 0}),
    Bad("master no text", 7, ("master",), {"master": "\ud800"}),
    Bad("stateDir relative", 7, ("stateDir", "state", "absolute"), {"stateDir": "state"}),
    Bad("stateDir relative, at DEL", 7, ("stateDir", "'state'", "absolute"), {"stateDir": "state"}, command="DEL"),
    Bad("stateDir relative, at GC", 7, ("stateDir", "'state'", "absolute"), {"stateDir": "state"}, command="GC"),
    Bad("stateDir no path", 7, ("stateDir",), {"stateDir": "/tmp/\0"}),
    Bad("stateDir no path, at DEL", 7, ("stateDir",), {"stateDir": "/tmp/\0"}, command="DEL"),
    Bad("stateDir no text, at DEL", 7, ("stateDir",), {"stateDir": "/tmp/\ud800"}, command="DEL"),
    Bad("a device that is none", 101, ("deviceID", "0000:3b:02.1"), {"deviceID": "0000:3b:02.1", "master": ...}),
    Bad("a PF that is none", 101, ("pf", "rail0", "no PCI"), {"pf": "rail0", "master": ...}),
    Bad("a device and a PF", 7, ("deviceID", "pf"), {"deviceID": "0000:3b:02.1", "pf": "rail0", "master": ...}),
    Bad("prevResult a string", 7, ("prevResult", "'x'", "object"), {"prevResult": "x"}),
    Bad(
        "prevResult with a bad address",
        7,
        ("prevResult", "10.0.0.1/33"),
        {"prevResult": {"ips": [{"address": "10.0.0.1/33"}]}},
    ),
    Bad(
        "prevResult pointing nowhere",
        7,
        ("prevResult", "3"),
        {"prevResult": {"ips": [{"address": "10.0.0.1/8", "interface": 3}]}},
    ),
    Bad("prevResult missing, at CHECK", 7, ("prevResult", "missing"), command="CHECK"),
    Bad("runtimeConfig not an object", 7, ("runtimeConfig", "'x'", "object"), {"runtimeConfig": "x"}),
    Bad("args not an object", 7, ("args", "[]", "object"), {"args": []}),
    Bad("args.cni not an object", 7, ("cni", "'x'", "object"), {"args": {"cni": "x"}}),
    Bad("GC's list not a list", 7, ("cni.dev/valid-attachments", "5"), {"cni.dev/valid-attachments": 5}, command="GC"),
    Bad(
        "GC's list of something else",
        7,
        ("cni.dev/valid-attachments", "containerID"),
        {"cni.dev/valid-attachments": [{"id": "x"}]},
        command="GC",
    ),
    Bad("unknown key", 2, ("mtuu", "9000", "correct"), {"mtuu": 9000}),
    Bad("unknown key of another plugin's", 2, ("promiscMode", "true"), {"promiscMode": True}),
    Bad("a wrong key is worse than an unknown one", 7, ("mtu -1",), {"mtu": -1, "mtuu": 1}),
]
MAC = [
    Bad("multicast", 7, ("mac", "01:00:5e:00:00:01", "multicast", "even"), {"mac": "01:00:5e:00:00:01"}),
    Bad("broadcast", 7, ("mac", "ff:ff:ff:ff:ff:ff", "multicast"), {"mac": "ff:ff:ff:ff:ff:ff"}),
    Bad("zero", 7, ("mac", "00:00:00:00:00:00", "zero"), {"mac": "00:00:00:00:00:00"}),
    Bad("malformed", 7, ("mac", "oops", "aa:bb:cc:dd:ee:ff"), {"mac": "oops"}),
    Bad("too long", 7, ("mac", "02:00:00:00:00:00:01"), {"mac": "02:00:00:00:00:00:01"}),
    Bad("a number", 7, ("mac", "5"), {"mac": 5}),
    Bad("malformed at runtimeConfig", 7, ("mac", "'oops'", "aa:bb"), runtime(mac="oops")),
    Bad("multicast at runtimeConfig", 7, ("mac", "'03:00:00:00:00:01'", "multicast"), runtime(mac="03:00:00:00:00:01")),
    Bad("a number at runtimeConfig", 7, ("mac", "5"), runtime(mac=5)),
    Bad("malformed at args.cni", 7, ("mac", "'oops'", "aa:bb"), cni_args(mac="oops")),
    Bad("zero at args.cni", 7, ("mac", "zero"), cni_args(mac="00:00:00:00:00:00")),
    Bad("malformed at CNI_ARGS", 7, ("mac", "'oops'", "aa:bb"), environ={"CNI_ARGS": "MAC=oops"}),
    Bad("multicast at CNI_ARGS", 7, ("mac", "multicast"), environ={"CNI_ARGS": "MAC=01:00:00:00:00:01"}),
    Bad(
        "passthru has the master's", 7, ("mac", "passthru", "remove"), {"mode": "passthru", "mac": "02:00:00:00:00:01"}
    ),
]
IPAM = [
    Bad("not an object", 7, ("ipam", "host-local"), {"ipam": "host-local"}),
    Bad("no type", 7, ("ipam.type", "hpn-ipam"), {"ipam": {"subnet": "10.56.0.0/24"}}),
    Bad("type not a string", 7, ("ipam.type", "5"), {"ipam": {"type": 5}}),
    Bad("type is a path", 7, ("ipam.type", "'/bin/true'", "CNI_PATH"), {"ipam": {"type": "/bin/true"}}),
    Bad("type climbs", 7, ("ipam.type", "'../hpn'"), {"ipam": {"type": "../hpn"}}),
    Bad("plugin not installed", 106, ("ipam.type", "'no-such'", "CNI_PATH"), {"ipam": {"type": "no-such"}}),
    Bad("no CNI_PATH to look in", 106, ("'no-such'", "CNI_PATH"), {"ipam": {"type": "no-such"}}, {"CNI_PATH": ...}),
    Bad("no range", 7, ("ipam", "no range", "subnet"), ipam()),
    Bad("no set", 7, ("ipam", "no range"), ranges()),
    Bad("an empty set", 7, ("ipam.ranges[0]", "no range"), ranges([])),
    Bad("ranges not sets", 7, ("ipam.ranges", "list"), ipam(ranges=[V4])),
    Bad("a range without subnet", 7, ("ipam.ranges[0][0].subnet", "missing"), ranges([{"gateway": "10.56.0.1"}])),
    Bad("subnet not one", 7, ("ipam.subnet", "oops"), ipam(subnet="oops")),
    Bad("subnet without length", 7, ("ipam.subnet", "10.56.0.0", "10.0.0.0/24"), ipam(subnet="10.56.0.0")),
    Bad("subnet too long", 7, ("ipam.subnet", "10.56.0.0/33"), ipam(subnet="10.56.0.0/33")),
    Bad("host bits set", 7, ("ipam.subnet", "10.56.0.9/24", "10.56.0.0/24"), ipam(subnet="10.56.0.9/24")),
    Bad("overlap within a set", 7, ("ipam.ranges[0][1]", "overlaps", "ipam.ranges[0][0]"), ranges([V4, V4])),
    Bad(
        "overlap across sets",
        7,
        ("overlaps", "ipam.ranges[0][0]", "rangeStart"),
        ranges([V4], [{"subnet": "10.56.0.0/16"}]),
    ),
    Bad(
        "overlap with the runtime's",
        7,
        ("overlaps", "runtimeConfig.ipRanges[0][0]"),
        subnet() | runtime(ipRanges=[[{"subnet": "10.56.0.128/25"}]]),
    ),
    Bad("families mixed", 7, ("ipam.ranges[0]", "IPv4 and IPv6", "two sets"), ranges([V4, {"subnet": "fd00::/64"}])),
    Bad("gateway outside", 7, ("ipam.gateway", "10.57.0.1", "10.56.0.0/24"), subnet(gateway="10.57.0.1")),
    Bad("gateway of the other family", 7, ("ipam.gateway", "fd00::1"), subnet(gateway="fd00::1")),
    Bad("gateway not an address", 7, ("ipam.gateway", "oops"), subnet(gateway="oops")),
    Bad("rangeStart outside", 7, ("ipam.rangeStart", "10.55.0.9", "10.56.0.0/24"), subnet(rangeStart="10.55.0.9")),
    Bad("rangeEnd outside", 7, ("ipam.rangeEnd", "10.57.0.9"), subnet(rangeEnd="10.57.0.9")),
    Bad("rangeStart above rangeEnd", 7, ("rangeStart", "above"), subnet(rangeStart="10.56.0.9", rangeEnd="10.56.0.5")),
    Bad("rangeStart short", 7, ("ipam.rangeStart", "10.9", "in full"), subnet(rangeStart="10.9")),
    Bad("rangeStart without subnet", 7, ("rangeStart", "ipam.subnet"), ranges([V4]) | ipam(rangeStart="10.56.0.9")),
    Bad("exclude outside", 7, ("exclude[0]", "10.57.0.0", "10.56.0.0/24"), subnet(exclude=["10.57.0.0/30"])),
    Bad("exclude not one", 7, ("ipam.exclude", "oops"), subnet(exclude=["oops"])),
    Bad("exclude backwards", 7, ("exclude", "10.56.0.9-10.56.0.5"), subnet(exclude=["10.56.0.9-10.56.0.5"])),
    Bad("exclude leaves nothing", 7, ("exclude", "nothing", "10.56.0"), subnet(exclude=["10.56.0.0/24"])),
    Bad("unknown key", 2, ("ipam.subnett", "10.56.0.0/24", "correct"), subnet(subnett="10.56.0.0/24")),
    Bad("unknown key of a range", 2, ("ipam.ranges[0][0].excludes", "[]"), ranges([V4 | {"excludes": []}])),
    Bad(
        "unknown key of a route", 2, ("ipam.routes[0].metric", "5"), subnet(routes=[{"dst": "0.0.0.0/0", "metric": 5}])
    ),
    Bad("route without destination", 7, ("ipam.routes[0].dst", "missing"), subnet(routes=[{"gw": "10.56.0.1"}])),
    Bad("route to a host in a net", 7, ("ipam.routes[0].dst", "10.0.0.1/8"), subnet(routes=[{"dst": "10.0.0.1/8"}])),
    Bad("route's mtu negative", 7, ("ipam.routes[0].mtu -1",), subnet(routes=[{"dst": "0.0.0.0/0", "mtu": -1}])),
    Bad("route's priority too high", 7, ("priority 4294967296",), subnet(routes=[{"dst": "::/0", "priority": 2**32}])),
    Bad("dataDir relative", 7, ("ipam.dataDir", "'state'", "absolute"), subnet(dataDir="state")),
    Bad("resolvConf not allowed", 7, ("ipam.resolvConf", "/no/such", "allowedPaths"), subnet(resolvConf="/no/such")),
    Bad("request not an address", 7, ("ips", "'oops'"), runtime(ips=["oops"])),
    Bad("request not an address, at args.cni", 7, ("ips", "'10.56.0.300'"), cni_args(ips=["10.56.0.300"])),
    Bad("request not an address, at CNI_ARGS", 4, ("CNI_ARGS", "IP", "'oops'"), environ={"CNI_ARGS": "IP=oops"}),
    Bad("request outside", 102, ("10.99.0.5", "in no range", "10.56.0.0/24"), runtime(ips=["10.99.0.5"])),
    Bad("request outside, at CNI_ARGS", 102, ("10.99.0.5", "in no range"), environ={"CNI_ARGS": "IP=10.99.0.5"}),
    Bad("request of the gateway", 102, ("10.56.0.1", "gateway", "another"), runtime(ips=["10.56.0.1"])),
    Bad(
        "request of an excluded one",
        102,
        ("10.56.0.9", "exclude", "another"),
        subnet(exclude=["10.56.0.9"]) | runtime(ips=["10.56.0.9"]),
    ),
    Bad(
        "request above rangeEnd",
        102,
        ("10.56.0.9", "rangeEnd", "another"),
        subnet(rangeEnd="10.56.0.8") | runtime(ips=["10.56.0.9"]),
    ),
    Bad("two requests of one set", 102, ("10.56.0.6", "10.56.0.5", "one"), runtime(ips=["10.56.0.5", "10.56.0.6"])),
    Bad("the one request that cannot be", 102, ("fd99::5",), runtime(ips=["10.56.0.5", "fd99::5"])),
]


def stranger(_host: Host, pod: Pod, _stack: ExitStack) -> None:
    pod.stranger()


def stranger_by_altname(_host: Host, pod: Pod, _stack: ExitStack) -> None:
    pod.stranger("data0")
    pod.ip("link", "property", "add", "dev", "data0", "altname", "hpn0")


def attached(host: Host, pod: Pod, _stack: ExitStack) -> None:
    host.ok("ADD", pod)


def beside(host: Host, pod: Pod, _stack: ExitStack) -> None:
    """Another attachment: it has 10.56.0.2, and the master is in use."""
    host.ok("ADD", pod, host.conf(mac="02:00:00:00:00:01"), CNI_IFNAME="hpn1")


def beside_in_passthru(host: Host, pod: Pod, _stack: ExitStack) -> None:
    host.ok("ADD", pod, host.conf(mode="passthru"), CNI_IFNAME="hpn1")


def the_only_one_beside(host: Host, pod: Pod, _stack: ExitStack) -> None:
    host.ok("ADD", pod, host.conf(**ipam(subnet="10.56.0.0/30")), CNI_IFNAME="hpn1")


def in_a_bridge(_host: Host, _pod: Pod, _stack: ExitStack) -> None:
    ip("link", "add", "br0", "type", "bridge")
    ip("link", "set", "rail0", "master", "br0")


def a_tunnel(_host: Host, _pod: Pod, _stack: ExitStack) -> None:
    ip("tuntap", "add", "dev", "tun9", "mode", "tun")
    ip("link", "set", "tun9", "up")


def default_by_a_tunnel(host: Host, pod: Pod, stack: ExitStack) -> None:
    a_tunnel(host, pod, stack)
    ip("route", "add", "default", "dev", "tun9")


def down(_host: Host, _pod: Pod, _stack: ExitStack) -> None:
    ip("link", "set", "rail0", "down")


def read_only_state(host: Host, pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    host.ok("DEL", pod)
    read_only(host.state)


def empty_read_only_state(host: Host, _pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    read_only(host.state)


def read_only_state_in_use(host: Host, pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    host.ok("ADD", pod)
    read_only(host.state)


def full_state(host: Host, _pod: Pod, stack: ExitStack) -> None:
    stack.enter_context(mounted(host.state))
    (host.state / "filler").write_bytes(bytes(1024 * 1024))


def file_as_state(host: Host, _pod: Pod, _stack: ExitStack) -> None:
    (host.tmp_path / "file").write_text("")
    host.state = host.tmp_path / "file"


def below_a_file(host: Host, _pod: Pod, _stack: ExitStack) -> None:
    (host.tmp_path / "file").write_text("")
    host.state = host.tmp_path / "file" / "state"


def script(on_add: str) -> Setup:
    """A delegate that does this at ADD, when the interface is there already, and nothing at DEL."""

    def setup(host: Host, _pod: Pod, _stack: ExitStack) -> dict[str, str]:
        return {"CNI_PATH": host.program("script", f"cat >/dev/null\n[ $CNI_COMMAND = ADD ] || exit 0\n{on_add}")}

    return setup


def not_executable(host: Host, _pod: Pod, _stack: ExitStack) -> dict[str, str]:
    path = host.program("script", "")
    (host.tmp_path / "bin" / "script").chmod(0o644)
    return {"CNI_PATH": path}


def not_a_program(host: Host, _pod: Pod, _stack: ExitStack) -> dict[str, str]:
    path = host.program("script", "")
    (host.tmp_path / "bin" / "script").write_bytes(b"\x7fELF")
    return {"CNI_PATH": path}


def answering(**result: Any) -> Setup:
    return script(f"echo '{json.dumps(result)}'")


CIRCUMSTANCES = [
    Bad("name taken by a stranger", 100, ("CNI_IFNAME", "hpn0", "another"), setup=stranger),
    Bad("name taken as another's altname", 100, ("hpn0", "altname of data0"), setup=stranger_by_altname),
    Bad("name of the loopback", 100, ("CNI_IFNAME", "lo"), environ={"CNI_IFNAME": "lo"}),
    Bad("attached already", 100, ("network rail0", "hpn0", "attached", "DEL"), setup=attached),
    Bad("CHECK of what is not attached", 107, ("not attached",), {"prevResult": {}}, command="CHECK"),
    Bad("master absent", 101, ("master", "'eth99'", "ip link"), {"master": "eth99"}),
    Bad("master not in the pod", 101, ("master", "'rail0'", "pod"), {"linkInContainer": True}),
    Bad("master down", 101, ("master", "'rail0'", "ip link set rail0 up"), setup=down),
    Bad("master in a bridge", 101, ("master", "'rail0'", "bridge", "another"), setup=in_a_bridge),
    Bad("no master and no default route", 101, ("master", "default route", "host"), {"master": ...}),
    Bad("no default route in the pod", 101, ("default route", "pod"), {"master": ..., "linkInContainer": True}),
    Bad("master that is the loopback", 101, ("master 'lo'", "not Ethernet", "ip -br link"), {"master": "lo"}),
    Bad("master that is a tunnel", 101, ("master 'tun9'", "not Ethernet"), {"master": "tun9"}, setup=a_tunnel),
    Bad("master of the default route that is a tunnel", 101, ("'tun9'",), {"master": ...}, setup=default_by_a_tunnel),
    Bad("master that is the loopback, at STATUS", 50, ("'lo'", "not Ethernet"), {"master": "lo"}, command="STATUS"),
    Bad(
        "passthru on a master in use",
        105,
        ("Invalid",),
        {"mode": "passthru"},
        setup=beside,
        details="macvlan hpn0 over rail0",
    ),
    Bad(
        "a master that is passed through",
        105,
        ("Invalid",),
        setup=beside_in_passthru,
        details="macvlan hpn0 over rail0",
    ),
    Bad("request of a held one", 102, ("10.56.0.2", "held by", "hpn1"), runtime(ips=["10.56.0.2"]), setup=beside),
    Bad(
        "pool exhausted", 103, ("10.56.0.0/30", "held", "widen"), ipam(subnet="10.56.0.0/30"), setup=the_only_one_beside
    ),
    Bad("state read-only", 5, ("state", "ead-only", "writable"), setup=read_only_state),
    Bad("state read-only from the beginning", 5, ("state", "ead-only"), setup=empty_read_only_state),
    Bad("state read-only, at DEL", 5, ("state", "ead-only"), setup=read_only_state_in_use, command="DEL"),
    Bad("state full", 5, ("state", "No space", "room"), setup=full_state),
    Bad("state is a file", 5, ("file", "directory"), setup=file_as_state),
    Bad("state is below a file", 5, ("file", "irectory"), setup=below_a_file),
    Bad("IPAM plugin that is the main plugin", 7, ("ipam.type 'hpn'", "did you mean hpn-ipam"), ITSELF),
    Bad("IPAM plugin that is the main plugin, at CHECK", 7, ("ipam.type 'hpn'",), ITSELF, command="CHECK"),
    Bad("IPAM plugin that is the main plugin, at STATUS", 7, ("ipam.type 'hpn'",), ITSELF, command="STATUS"),
    Bad("IPAM plugin not executable", 106, ("script", "CNI_PATH"), SCRIPT, setup=not_executable),
    Bad("IPAM plugin not a program", 106, ("script", "xec format"), SCRIPT, setup=not_a_program),
    Bad(
        "IPAM plugin's own error",
        142,
        ("script", "database is away"),
        SCRIPT,
        setup=script('echo \'{"code":142,"msg":"database is away","details":"since noon"}\'; exit 1'),
        details="since noon",
    ),
    Bad("IPAM plugin prints no JSON", 106, ("script", "no result"), SCRIPT, setup=script("echo oops")),
    Bad("IPAM plugin prints a list", 106, ("script", "no result"), SCRIPT, setup=script("echo '[]'")),
    Bad("IPAM plugin prints nothing", 106, ("script", "no address"), SCRIPT, setup=script("exit 0")),
    Bad("IPAM plugin fails silently", 106, ("script", "status 3"), SCRIPT, setup=script("exit 3")),
    Bad("IPAM plugin fails with another's output", 106, ("script", "status 1"), SCRIPT, setup=script("echo 5; exit 1")),
    Bad("IPAM plugin is killed", 106, ("script", "signal 9"), SCRIPT, setup=script("kill -9 $$")),
    Bad("IPAM plugin gives nothing", 106, ("script", "no address"), SCRIPT, setup=answering(ips=[])),
    Bad("IPAM plugin gives no address", 106, ("script", "oops"), SCRIPT, setup=answering(ips=[{"address": "oops"}])),
    Bad(
        "IPAM plugin gives an impossible route",
        106,
        ("script", "mtu", "-5"),
        SCRIPT,
        setup=answering(ips=[{"address": "10.56.0.2/24"}], routes=[{"dst": "10.0.0.0/8", "mtu": -5}]),
    ),
    Bad(
        "IPAM plugin gives one address twice",
        105,
        ("xists",),
        SCRIPT,
        setup=answering(ips=[{"address": "10.56.0.2/24"}, {"address": "10.56.0.2/24"}]),
        details="adding address 10.56.0.2/24",
    ),
]
SECTIONS = {
    "environment": ENVIRONMENT,
    "stdin": STDIN,
    "version": VERSION,
    "conf": CONFIGURATION,
    "mac": MAC,
    "ipam": IPAM,
    "circumstances": CIRCUMSTANCES,
}


@pytest.mark.parametrize(
    "bad", [pytest.param(bad, id=f"{name}: {bad.why}") for name, table in SECTIONS.items() for bad in table]
)
def test_refused_without_a_trace(host: Host, pod: Pod, bad: Bad) -> None:
    with ExitStack() as stack:
        environ = dict(bad.environ) | ((bad.setup and bad.setup(host, pod, stack)) or {})
        conf = bad.keys if isinstance(bad.keys, bytes) else host.conf(**bad.keys)
        before = host.picture(pod)
        reply = host.call(bad.command, pod, conf, **environ)
        after = host.picture(pod)

    assert reply.exit_code == 1
    assert reply.stdout.count("\n") == 1
    error = json.loads(reply.stdout)
    assert error.keys() <= {"cniVersion", "code", "msg", "details"}
    assert error["cniVersion"] in ("0.3.1", "1.0.0", "1.1.0")
    assert error["code"] == bad.code, (error, reply.log)
    for words in bad.says:
        assert words in error["msg"]
    assert bad.details in error.get("details", "")
    assert after == before


def test_an_error_is_in_the_version_asked_for(host: Host, pod: Pod) -> None:
    for version in ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"):
        assert host.refused("ADD", pod, host.conf(cniVersion=version, mtu=-1))["cniVersion"] == version


def test_everything_that_is_wrong_is_said_at_once(host: Host, pod: Pod) -> None:
    error = host.refused("ADD", pod, host.conf(mtu=-1, mode="fast", mtuu=1))
    assert all(words in error["msg"] + error["details"] for words in ("mtu -1", '"fast"', "mtuu"))


def test_an_ipam_that_failed_to_give_is_asked_to_take_back(host: Host, pod: Pod) -> None:
    """It may have died between the two (SPEC 1.1.0, section 4: on failure of ADD, its DEL is to be called)."""
    seen = host.tmp_path / "seen"
    path = host.program("script", f"cat >/dev/null; echo $CNI_COMMAND >> {seen}; [ $CNI_COMMAND = DEL ]")
    assert host.refused("ADD", pod, host.conf(**SCRIPT), CNI_PATH=path)["code"] == 106
    assert seen.read_text().split() == ["ADD", "DEL"]
    assert host.state_files() == set()


def test_where_not_all_can_be_undone_the_record_stays(host: Host, pod: Pod) -> None:
    """The IPAM plugin refuses both to give and to take back: DEL has to, and the error says so."""
    path = host.program("script", 'cat >/dev/null; echo \'{"code":142,"msg":"away"}\'; exit 1')
    conf = host.conf(**SCRIPT)
    error = host.refused("ADD", pod, conf, CNI_PATH=path)
    assert error["code"] == 142
    assert "DEL" in error.get("details", "")
    assert pod.links() == set()
    assert host.record(pod).exists()
    host.program("script", "cat >/dev/null")
    host.ok("DEL", pod, conf, CNI_PATH=path)
    assert host.state_files() == set()


def hpn_as(name: str, host: Host) -> tuple[str, Path]:
    """This very program under another name; the CNI_PATH it is found with, and a file with a line for each start.  The
    fourth start is the last, should it ask itself without end."""
    starts = host.tmp_path / "starts"
    once_more = f"echo $CNI_COMMAND >> {starts}\n[ $(wc -l < {starts}) -lt 4 ] || exit 9"
    return host.program(name, f"{once_more}\ncd {ROOT} && exec {sys.executable} -m ctl"), starts


@pytest.mark.parametrize("command", ["ADD", "STATUS", "DEL", "GC"])
@pytest.mark.parametrize("name", ["hpn", "rails"])
def test_hpn_never_asks_itself_for_addresses(host: Host, pod: Pod, name: str, command: str) -> None:
    """Neither by the name that it was called by, nor by a link of another; and it never gave any that could go back."""
    path, starts = hpn_as(name, host)
    starts.write_text("")
    reply = host.call(command, pod, host.conf(ipam={"type": name, "subnet": "10.56.0.0/24"}), CNI_PATH=path)
    if command in ("DEL", "GC"):
        assert (reply.exit_code, reply.stdout) == (0, "")
    else:
        error = json.loads(reply.stdout)
        assert (error["code"], "did you mean hpn-ipam" in error["msg"]) == (7, True), error
    failed_add = ["ADD", "DEL"] if command == "ADD" else [command]
    assert starts.read_text().split() == ([] if name == "hpn" else failed_add)
    assert (pod.links(), host.state_files()) == (set(), set())
