"""Configurations for other plugins, unchanged except for ``type`` and the master's name.

hpn accepts their valid keys with the same effect.  It refuses keys with another meaning here, and names the
translation.
"""

import json
from dataclasses import dataclass

import pytest
from support.topology import Host, Pod

FIRST = frozenset({"10.56.0.2/24"})


@dataclass(frozen=True)
class Theirs:
    """A configuration that another plugin accepts, and the expected interface of the pod."""

    why: str
    text: str
    mode: str = "bridge"
    mtu: int = 1500
    mac: str = ""
    addresses: frozenset[str] = FIRST
    says: tuple[str, ...] = ()


TAKEN = [
    Theirs(
        "the reference macvlan suite's configuration of CHECK",
        """{"cniVersion": "0.4.0", "name": "mynet", "type": "hpn", "master": "rail0", "mode": "", "mtu": 0,
            "ipam": {"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]]}}""",
    ),
    Theirs(
        "null for everything that Go writes as null",
        """{"cniVersion": "1.0.0", "name": "mynet", "type": "hpn", "master": "rail0", "mode": null, "mtu": null,
            "dns": null, "linkInContainer": null, "mac": null, "vlan": null, "bcqueuelen": null, "runtimeConfig": null,
            "args": null, "capabilities": null, "prevResult": null,
            "ipam": {"type": "hpn-ipam", "ranges": null, "routes": null, "subnet": "10.56.0.0/24"}}""",
    ),
    Theirs(
        "empty strings where host-local has a default",
        """{"cniVersion": "1.0.0", "name": "mynet", "type": "hpn", "master": "rail0", "mac": "",
            "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "rangeStart": "", "rangeEnd": "", "gateway": "",
                     "dataDir": "", "resolvConf": "", "routes": [{"dst": "10.0.0.0/8", "gw": ""}]}}""",
    ),
    Theirs(
        "no gateway is ours to say, by null",
        """{"cniVersion": "1.0.0", "name": "mynet", "type": "hpn", "master": "rail0",
            "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "gateway": null}}""",
        addresses=frozenset({"10.56.0.1/24"}),
    ),
    Theirs(
        "an IPAM of no type is none",
        """{"cniVersion": "1.0.0", "name": "mynet", "type": "hpn", "master": "rail0", "ipam": {"type": ""}}""",
        addresses=frozenset(),
    ),
    Theirs(
        "keys in another case, which Go's JSON does not mind",
        """{"cniVersion": "1.0.0", "name": "mynet", "type": "hpn", "Master": "rail0", "MODE": "private", "Mtu": 1400,
            "RuntimeConfig": {"MAC": "02:00:00:00:00:05"}, "linkincontainer": false,
            "IPAM": {"Type": "hpn-ipam", "Ranges": [[{"Subnet": "10.56.0.0/24", "rangestart": "10.56.0.9"}]],
                     "Routes": [{"Dst": "10.0.0.0/8", "GW": "10.56.0.1"}]}}""",
        mode="private",
        mtu=1400,
        mac="02:00:00:00:00:05",
        addresses=frozenset({"10.56.0.9/24"}),
    ),
    Theirs(
        "what runs along in args and runtimeConfig",
        """{"cniVersion": "1.0.0", "name": "mynet", "type": "hpn", "master": "rail0",
            "Args": {"CNI": {"Ips": ["10.56.0.77"]}}, "runtimeConfig": {"ipranges": [[{"SUBNET": "10.57.0.0/24"}]]},
            "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}""",
        addresses=frozenset({"10.57.0.2/24", "10.56.0.77/24"}),
    ),
    Theirs(
        "tuning's args.cni.mtu, which goes before mtu",
        """{"cniVersion": "1.0.0", "name": "mynet", "type": "hpn", "master": "rail0", "mtu": 1300,
            "args": {"cni": {"mtu": 1400}}, "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}""",
        mtu=1400,
    ),
    Theirs(
        "ib-sriov-cni's README and ib-kubernetes",
        """{"cniVersion": "0.3.1", "name": "ib", "type": "hpn", "master": "rail0", "pkey": "0x223F",
            "rdmaIsolation": true, "ibKubernetesEnabled": true,
            "ipam": {"type": "hpn-ipam", "subnet": "10.56.0.0/24"}}""",
        says=('pkey "0x223F" is ignored', "rdmaIsolation true is ignored", "ibKubernetesEnabled true is"),
    ),
]


@pytest.mark.parametrize("theirs", [pytest.param(theirs, id=theirs.why) for theirs in TAKEN])
def test_taken_as_the_peer_takes_it(host: Host, pod: Pod, theirs: Theirs) -> None:
    conf = theirs.text.encode()
    reply = host.call("ADD", pod, conf)
    assert reply.exit_code == 0, reply.stdout
    log = "\n".join(reply.log)
    assert [words for words in theirs.says if words not in log] == []
    assert bool(log) == bool(theirs.says)
    link = pod.link()
    assert link is not None
    assert (link["mtu"], link["linkinfo"]["info_data"]["mode"]) == (theirs.mtu, theirs.mode)
    assert theirs.mac in ("", link["address"])
    assert pod.addresses() == theirs.addresses
    if json.loads(conf)["cniVersion"] >= "0.4.0":
        checked = host.call("CHECK", pod, {**json.loads(conf), "prevResult": json.loads(reply.stdout)})
        assert checked.exit_code == 0, checked.stdout
    assert host.call("DEL", pod, conf).exit_code == 0
    assert pod.links() == set()
    assert host.leases() == set()


REFUSED = [
    (
        "a key twice, of which tuning says so too",
        7,
        ('key "net.core.somaxconn"', '"1024" and "4096"', "remove one"),
        """{"cniVersion": "1.0.0", "name": "n", "type": "hpn", "master": "rail0",
            "sysctl": {"net.core.somaxconn": "1024", "net.core.somaxconn": "4096"}}""",
    ),
    (
        "a key twice, at the top",
        7,
        ('key "mtu"', "1400 and 9000", "remove one"),
        """{"cniVersion": "1.0.0", "name": "n", "type": "hpn", "master": "rail0", "mtu": 1400, "mtu": 9000}""",
    ),
    (
        "a key in two spellings",
        7,
        ("mode and Mode", "remove one"),
        """{"cniVersion": "1.0.0", "name": "n", "type": "hpn", "master": "rail0", "mode": "vepa", "Mode": "bridge"}""",
    ),
    (
        "a misspelled key stays one in any case",
        2,
        ("MTUU 9000", "an unknown key"),
        """{"cniVersion": "1.0.0", "name": "n", "type": "hpn", "master": "rail0", "MTUU": 9000}""",
    ),
    (
        "names of sysctls have a case",
        7,
        ("Net.core.somaxconn",),
        """{"cniVersion": "1.0.0", "name": "n", "type": "hpn", "master": "rail0",
            "sysctl": {"Net.core.somaxconn": "1024"}}""",
    ),
    (
        "an MTU in args that is no number, which tuning does not take either",
        7,
        ("args.cni.mtu", '"1400"', "whole number"),
        """{"cniVersion": "1.0.0", "name": "n", "type": "hpn", "master": "rail0", "args": {"cni": {"mtu": "1400"}}}""",
    ),
    (
        "an MTU in args that the master does not have",
        7,
        ("mtu 9000", "'rail0'"),
        """{"cniVersion": "1.0.0", "name": "n", "type": "hpn", "master": "rail0", "args": {"cni": {"mtu": 9000}}}""",
    ),
    (
        "hustcat's whole PF",
        7,
        ("master 'rail0'", "pfOnly", "write pf 'rail0' in place of master"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "master": "rail0", "pfOnly": true,
            "ipam": {"type": "hpn-ipam", "subnet": "10.55.206.0/26"}}""",
    ),
    (
        "hustcat's VF by number",
        7,
        ("master 'rail0'", "vf", "write pf 'rail0' in place of master"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "master": "rail0", "vf": 1,
            "mac": "66:d8:02:77:aa:aa", "ipam": {"type": "hpn-ipam", "subnet": "10.55.206.0/26"}}""",
    ),
    (
        "its fork without addresses, where nothing is strict",
        7,
        ("l2enable and vlan", "write pf 'rail0' in place of master", "leave out ipam"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "strict": false, "master": "rail0", "vlan": 7,
            "l2enable": true}""",
    ),
    (
        "a VLAN that may be a macvlan's",
        7,
        ("vlan", "write pf 'rail0' in place of master", "link add link rail0 name vlan102 type vlan id 102"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "master": "rail0", "vlan": 102}""",
    ),
    (
        "a VLAN that is a macvlan's",
        2,
        ("vlan 102 beside mode", "link add link rail0 name vlan102 type vlan id 102"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "master": "rail0", "mode": "bridge", "vlan": 102}""",
    ),
    (
        "ib-sriov-cni's mode",
        7,
        ("mode 'rdma'", "remove mode", "kind sriov"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "mode": "rdma", "deviceID": "0000:3b:02.0"}""",
    ),
    (
        "a master beside sriov-cni's device",
        7,
        ("master 'rail0'", "vlan", "remove master", "'0000:3b:02.0'"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "master": "rail0", "vlan": 7,
            "deviceID": "0000:3b:02.0"}""",
    ),
    (
        "a master with the kind that has none",
        7,
        ("master 'rail0'", "kind 'sriov'", "write pf 'rail0' in place of master"),
        """{"cniVersion": "0.3.1", "name": "mynet", "type": "hpn", "kind": "sriov", "master": "rail0"}""",
    ),
    (
        "no cniVersion",
        1,
        ("cniVersion is missing", 'set "cniVersion": "1.0.0"'),
        """{"name": "mynet", "type": "hpn", "master": "rail0"}""",
    ),
]


@pytest.mark.parametrize(("code", "says", "text"), [pytest.param(*row[1:], id=row[0]) for row in REFUSED])
def test_refused_in_words_that_help(host: Host, pod: Pod, code: int, says: tuple[str, ...], text: str) -> None:
    before = host.picture(pod)
    error = host.refused("ADD", pod, text.encode())
    assert error["code"] == code, error
    assert [words for words in says if words not in error["msg"]] == []
    assert host.picture(pod) == before


@pytest.mark.parametrize("asked", ["VF=3", "VLAN=7"])
def test_what_a_pod_asks_of_hustcats_plugin(host: Host, pod: Pod, asked: str) -> None:
    error = host.refused("ADD", pod, host.conf(), CNI_ARGS=f"IgnoreUnknown=1;{asked}")
    assert (error["code"], "write pf 'rail0' in place of master" in error["msg"]) == (7, True)


@pytest.mark.parametrize(
    "more", ['"mtu": 1400, "mtu": 9000', '"mode": "vepa", "Mode": "bridge"', '"stateDir": "/elsewhere"'], ids=str
)
@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_what_is_ambiguous_goes_all_the_same(host: Host, pod: Pod, command: str, more: str) -> None:
    """DEL and GC accept duplicate keys, and the last one counts: pods must end although a network's configuration was
    spoilt."""
    host.ok("ADD", pod)
    whole = json.dumps({**host.conf(), "cni.dev/valid-attachments": []})
    host.ok(command, pod, f"{{{more}, {whole[1:]}".encode())
    assert pod.links() == set()
    assert host.leases() == set()
    host.ok("DEL", pod)
