"""The author of a pod, who cannot write a NetworkAttachmentDefinition.  Multus copies the pod's cni-args into
args.cni."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.topology import PROGRAMS, Host, Pod

from base.protocol.spec import Request
from base.state import permitted
from cni import config
from cni.main import run as hpn
from ipam import main as hpn_ipam
from ipam.rails import device_of

GUID = "00:11:22:33:44:55:66:77"
# The choices of the definition's author and of kubelet.
VF = {"cniVersion": "1.1.0", "name": "n", "type": "hpn", "kind": "sriov", "vlan": 100, "deviceID": "0000:ff:00.2"}
STICKY = {"type": "hpn-ipam", "subnet": "10.56.0.0/24", "sticky": 3600}


def of(pod: str) -> str:
    """The CNI_ARGS of a pod."""
    namespace, _, name = pod.partition("/")
    return f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"


def may_choose(node_file: Path, *keys: str) -> None:
    node_file.write_text(json.dumps({"podMayChoose": keys}))


def asked(command: str, conf: dict[str, Any], args: str = "") -> dict[str, Any]:
    """The answer to a command for an absent pod."""
    of_pod = {"CNI_CONTAINERID": "c", "CNI_NETNS": "/nonexistent/p", "CNI_IFNAME": "hpn0", "CNI_PATH": "/nonexistent"}
    environ = {"CNI_COMMAND": command, "CNI_ARGS": f"{of('mine/p')};{args}", **of_pod}
    return dict(json.loads(hpn(Request(environ, json.dumps(conf).encode()), PROGRAMS).stdout or "{}"))


def refusal(conf: dict[str, Any], **args: Any) -> str:
    """The refusal of the pod's choice by ADD and STATUS; empty if ADD got as far as opening the pod's namespace."""
    conf = conf | {"args": {"cni": args}}
    error = asked("ADD", conf)
    if error["code"] == 4:
        assert "CNI_NETNS" in error["msg"]
        return ""
    assert (error["code"], asked("STATUS", conf)) == (7, error)
    return str(error["msg"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("vlan", 200), ("vlan", "0"), ("vlan", 0), ("vf", 3), ("vf", 0), ("vf", "0"), ("VLAN", 200)),
        *(("guid", GUID), ("infinibandGUID", GUID), ("sticky", "victim/db-0"), ("Sticky", "/db-0")),
    ],
)
def test_what_only_the_administrator_can_allow(tmp_path: Path, node_file: Path, key: str, value: str | int) -> None:
    conf = VF | {"args": {"cni": {key: value}}}
    said, ours = refusal(conf, **{key: value}), next(k for k in permitted.CHOICES if k.lower() == key.lower())
    assert f"args.cni.{ours} {json.dumps(value)}: this node lets " in said
    assert ("podMayChoose" in said, f"{node_file}" in said, (tmp_path / "state").exists()) == (True, True, False)
    for command in ("DEL", "GC"):
        assert asked(command, conf | {"cni.dev/valid-attachments": []}) == {}
    may_choose(node_file, ours)
    assert "this node lets" not in refusal(conf, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("deviceID", "0000:5e:00.7"), ("DEVICEID", "0000:5e:00.7"), ("pciBusID", "0000:5e:00.7"), ("pf", "rail1")),
        *(("master", "eth0"), ("stateDir", "/run/x"), ("trust", "on"), ("ipRanges", [[]] * 2), ("kind", "host-device")),
        *(("ipam", {"type": "hpn-ipam"}), ("CNIDeviceInfoFile", "/etc/shadow"), ("logFile", "/var/log/hpn/x")),
    ],
)
def test_what_nobody_can_allow(node_file: Path, key: str, value: Any) -> None:
    said = refusal(VF, **{key: value})
    assert (f"{json.dumps(value)}: a pod may not choose " in said, "cni-args" in said) == (True, True)
    may_choose(node_file, key)
    assert str(node_file) in refusal(VF)


def test_the_device_is_kubelets_choice() -> None:
    """A pod cannot override kubelet's device, which Multus puts into the configuration or, by its capability, into
    runtimeConfig."""
    named = {"cniVersion": "1.1.0", "name": "n", "type": "hpn", "args": {"cni": {"deviceID": "0000:5e:00.7"}}}
    keys: dict[str, Any]
    for keys in ({"deviceID": "0000:3b:00.2"}, {"runtimeConfig": {"deviceID": "0000:3b:00.2"}}):
        for kind in ("sriov", "host-device"):
            assert config.load(named | keys | {"kind": kind}, "").attach.deviceID == "0000:3b:00.2"
        assert device_of(named | keys) == {"pciAddress": ["0000:3b:00.2"]}
    assert config.load(named, "").attach.kind == "macvlan"
    assert device_of(named) == {}


def test_what_other_plugins_take_too(host: Host, pod: Pod) -> None:
    """ADD takes addresses, MAC and MTU from the pod, and ignores labels, tuning's sysctls and other unknown keys."""
    ours = {"mac": "02:00:00:00:00:07", "ips": ["10.56.0.77"], "mtu": 1400}
    others = {"labels": [{"key": "app", "value": "x"}], "sysctl": {"net.core.somaxconn": "1"}, "vlan": "", "vf": None}
    host.ok("ADD", pod, host.conf(args={"cni": ours | others}))
    link = pod.link()
    assert link
    assert (link["address"], link["mtu"]) == (ours["mac"], 1400)
    assert "10.56.0.77/24" in pod.addresses()


def test_the_guid_of_ib_kubernetes() -> None:
    """A pod may set a GUID if a key of the definition declares that ib-kubernetes assigns GUIDs."""
    args = {"guid": GUID, "mellanox.infiniband.app": "configured"}
    assert refusal(VF | {"ibKubernetesEnabled": True}, **args) == ""
    for more in ({}, {"ibKubernetesEnabled": False}):
        assert "ibKubernetesEnabled" in refusal(VF | more, **args)


def test_a_list_stands_for_the_default(node_file: Path) -> None:
    may_choose(node_file, "vlan")
    assert refusal(VF, vlan=200) == ""
    assert refusal(VF, mac="02:00:00:00:00:07")
    assert refusal(VF | {"ibKubernetesEnabled": True}, guid=GUID)
    may_choose(node_file)
    assert refusal(VF, mtu=1400)
    assert refusal(VF, sticky="db-0") == refusal(VF, sticky="mine/db-0") == ""


def test_what_the_runtime_says_is_no_pods(node_file: Path) -> None:
    may_choose(node_file)
    runtime = {"mac": "02:00:00:00:00:07", "infinibandGUID": GUID, "sticky": "a/b"}
    assert asked("ADD", VF | {"runtimeConfig": runtime}, "VLAN=7;STICKY=victim/db-0")["code"] == 4


@pytest.mark.parametrize(
    "text",
    ['{"podMayChoose": "mac"}', '{"podMayChoose": ["deviceID"]}', '{"podMayChoose": [7]}', '{"podMayChoose": [[]]}'],
)
def test_a_broken_list(tmp_path: Path, node_file: Path, text: str) -> None:
    """An invalid list could allow anything, so ADD refuses every pod.  DEL still succeeds."""
    node_file.write_text(text)
    said = refusal(VF)
    assert ("podMayChoose" in said, str(node_file) in said) == (True, True)
    assert asked("DEL", VF) == {}


def test_anothers_sticky_address(host: Host, make_pod: Callable[[], Pod]) -> None:
    """A pod's author may use the sticky names of the own namespace only."""
    victim, thief, again = make_pod(), make_pod(), make_pod()
    conf = host.conf(ipam=STICKY)
    host.ok("ADD", victim, conf, CNI_ARGS=of("red/web-0"))
    kept = victim.addresses()
    host.ok("DEL", victim, conf, CNI_ARGS=of("red/web-0"))
    for name in ("red/web-0", "red/", "/web-0", "red/../blue/web-0"):
        error = host.refused("ADD", thief, conf | {"args": {"cni": {"sticky": name}}}, CNI_ARGS=of("blue/p"))
        assert (error["code"], "namespace 'blue'" in error["msg"]) == (7, True)
    for name in ("web-0", "blue/web-0"):
        host.ok("ADD", thief, conf | {"args": {"cni": {"sticky": name}}}, CNI_ARGS=of("blue/p"))
        assert thief.addresses() == {"10.56.0.3/24"}
        host.ok("DEL", thief, conf | {"args": {"cni": {"sticky": name}}}, CNI_ARGS=of("blue/p"))
    host.ok("ADD", thief, conf, CNI_ARGS=of("blue/web-0"))
    assert thief.addresses() == {"10.56.0.3/24"}
    host.ok("ADD", again, conf, CNI_ARGS=of("red/web-0"))
    assert again.addresses() == kept == {"10.56.0.2/24"}


def test_under_another_main_plugin(host: Host, node_file: Path) -> None:
    """hpn-ipam checks the keys that it reads, and leaves the others to the main plugin."""
    environ = {
        "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/run/netns/p", "CNI_IFNAME": "net1",
        "CNI_PATH": "/nonexistent", "CNI_ARGS": of("blue/p"),
    }  # fmt: skip

    def add(**args: Any) -> dict[str, Any]:
        conf = host.conf(type="macvlan", ipam=STICKY, args={"cni": args})
        return dict(json.loads(hpn_ipam.run(Request(environ, json.dumps(conf).encode())).stdout))

    assert (add(sticky="red/web-0")["code"], host.state_files()) == (7, set())
    assert "ips" in add(vlan=7, mac="02:00:00:00:00:07", sysctl={}, ips=["10.56.0.77"])
    may_choose(node_file)
    assert "podMayChoose" in add(ips=["10.56.0.77"])["msg"]
    may_choose(node_file, "sticky")
    assert "ips" in add(sticky="red/web-0")


def test_an_attachment_from_before(host: Host, pod: Pod) -> None:
    """CHECK and DEL of an existing attachment follow its record, even if ADD would refuse it now."""
    result = host.ok("ADD", pod, host.conf())
    conf = host.conf(args={"cni": {"deviceID": "0000:5e:00.7", "sticky": "victim/db-0"}})
    assert host.refused("STATUS", None, conf)["code"] == 7
    assert host.checked(pod, conf, result).exit_code == 0
    host.ok("DEL", pod, conf)
    assert (pod.links(), host.leases()) == (set(), set())


@pytest.mark.parametrize(("where", "value"), [("runtimeConfig", 0), ("args", 0), ("args", "0")])
def test_a_number_that_is_zero(where: str, value: int | str) -> None:
    """The numbers 0 of a VF and of a VLAN count as set."""
    asked = {"vf": value, "vlan": value}
    source = {"runtimeConfig": asked} if where == "runtimeConfig" else {"args": {"cni": asked}}
    conf = {"cniVersion": "1.1.0", "name": "n", "type": "hpn", "pf": "rail0", "vf": 3, "vlan": 100}
    attach = config.load(conf | source, "").attach
    assert (getattr(attach, "vf", None), getattr(attach, "vlan", None)) == (0, 0)
