"""hpn list, hpn check and hpn inspect WHAT on real interfaces: CHECK's findings, and each interface's current place."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from netns.operating import ran, said, told
from netns.tampering import routed
from support.topology import Host, Pod, ip

from base.state import libcni_cache
from ctl.main import main as hpn

MakePod = Callable[[], Pod]
MAC = "02:00:00:00:00:aa"


def test_check_says_what_check_says(host: Host, make_pod: MakePod) -> None:
    pod, other = make_pod(), make_pod()
    conf = routed(host)
    result = host.ok("ADD", pod, conf)
    host.ok("ADD", other)
    assert [(a["state"], a["wrong"]) for a in told(host, "check")] == [("ok", False)] * 2
    pod.ip("route", "delete", "10.60.0.0/16", "dev", "hpn0")
    error = host.refused("CHECK", pod, conf | {"prevResult": result})
    before = host.picture(pod, other)
    found = {a["containerID"]: a for a in told(host, "check", status=1)}
    assert (found[pod.name]["why"], found[pod.name]["code"]) == (error["msg"], error["code"])
    assert found[other.name]["state"] == "ok"
    assert told(host, "check", other.name)[0]["state"] == "ok"
    assert host.picture(pod, other) == before
    done = ran(host, "check")
    assert (done.returncode, error["msg"] in done.stdout, done.stderr) == (1, True, "")


def test_check_of_every_part(host: Host, pod: Pod) -> None:
    conf = routed(host, policyRouting=True, sysctl={"net.core.somaxconn": "77"})
    host.ok("ADD", pod, conf)
    said(host, "check")
    pod.sysctl("core/somaxconn", "78")
    assert "somaxconn" in told(host, "check", status=1)[0]["why"]
    host.ok("DEL", pod, conf)


def test_what_a_later_plugin_changed(host: Host, pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hpn check expects a later plugin's change from the chain's result in libcni's cache, which ADD's own result
    lacks."""
    monkeypatch.setattr(libcni_cache, "RESULTS", (str(tmp_path),))
    result = host.ok("ADD", pod)
    pod.ip("link", "set", "hpn0", "address", MAC)
    assert MAC in told(host, "check", status=1)[0]["why"]
    result["interfaces"][0]["mac"] = MAC
    cached = {"kind": "cniCacheV1", "result": result}
    (tmp_path / f"rail0-{pod.name}-hpn0").write_text(json.dumps(cached))
    said(host, "check")


def test_another_ipams_check(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """hpn check calls another IPAM with ADD's configuration and prevResult, and reports its refusal."""
    result = {"cniVersion": "1.1.0", "ips": [{"address": "10.56.0.2/24"}]}
    asked, conf = host.tmp_path / "asked", host.conf(ipam={"type": "script"})
    script = f"cat >{asked}.$CNI_COMMAND; [ $CNI_COMMAND != ADD ] || echo '{json.dumps(result)}'"
    path = host.program("script", script)
    host.ok("ADD", pod, conf, CNI_PATH=path)
    monkeypatch.setenv("CNI_PATH", path)
    said(host, "check")
    stdin = json.loads(Path(f"{asked}.CHECK").read_text())
    assert (stdin["prevResult"]["ips"], stdin["ipam"]) == ([{"address": "10.56.0.2/24", "interface": 0}], conf["ipam"])
    host.program("script", """cat >/dev/null; echo '{"cniVersion":"1.1.0","code":133,"msg":"no lease"}'; exit 1""")
    (found,) = told(host, "check", status=1)
    assert (found["code"], "no lease" in found["why"]) == (133, True)
    host.ok("DEL", pod, conf, CNI_PATH=host.giving())


def test_a_lease_that_is_gone(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod)
    words = ["release", "rail0", f"{pod.name}:hpn0", "--force", "--data-dir", str(host.state / "ipam")]

    assert hpn(["hpn", "ipam", *words]) == 0
    assert told(host, "check", status=1)[0]["code"] == 107
    host.ok("DEL", pod)


def test_rdma_devices_where_the_kernel_has_no_rdma(host: Host, pod: Pod) -> None:
    """The commands work on a record with RDMA devices after the kernel's RDMA module is gone."""
    ip("link", "add", "eth9", "type", "veth", "peer", "name", "far9")
    conf = host.conf(kind="host-device", master=..., device="eth9")
    host.ok("ADD", pod, conf)
    record = host.record(pod)
    link = json.loads(record.read_text())["body"]["link"]
    host.rewrite(record, link=link | {"rdma": [[999, "mlx5_9"]], "rdma_devs": ["mlx5_9"]})
    for command in ("list", "inspect", "check"):
        done = ran(host, command, pod.name) if command != "list" else ran(host, command)
        assert "Traceback" not in done.stderr
        assert "mlx5_9" in done.stdout or command == "check"
    host.rewrite(record, link=link)
    host.ok("DEL", pod, conf)


def test_where_an_interface_is(host: Host, make_pod: MakePod) -> None:
    pod, inner = make_pod(), make_pod()
    host.ok("ADD", pod)

    def now() -> tuple[str, str]:
        (found,) = told(host, "inspect", pod.name)
        return found["now"]["where"], found["now"]["name"]

    assert now() == ("pod", "hpn0")
    before = host.picture(pod)
    assert (now(), host.picture(pod)) == (("pod", "hpn0"), before)
    pod.ip("link", "set", "hpn0", "down")
    pod.ip("link", "set", "hpn0", "name", "mine0", "netns", inner.name)
    assert now() == ("elsewhere", "mine0")
    inner.gone()  # the kernel may take some time
    host.ok("DEL", pod)
    assert told(host, "inspect", pod.name, status=1) == []


def test_an_interface_of_the_hosts_that_went_home(host: Host, pod: Pod) -> None:
    ip("link", "add", "eth9", "type", "veth", "peer", "name", "far9")
    conf = host.conf(kind="host-device", master=..., device="eth9")
    host.ok("ADD", pod, conf)
    (found,) = told(host, "inspect", "eth9")
    assert found["now"]["where"] == "pod"
    host.ok("DEL", pod, conf)


def test_all_that_is_known(host: Host, pod: Pod) -> None:
    host.ok("ADD", pod, CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=worker-0")
    link = pod.link()
    assert link
    for what in (
        "worker-0",
        "default/worker-0",
        pod.name,
        "hpn0",
        "10.56.0.2",
        "fd00:56::2",
        link["address"],
        pod.path,
    ):
        (found,) = told(host, "inspect", what)
        assert found["containerID"] == pod.name
    assert (found["namespace"], found["record"]) == (pod.inode(), str(host.record(pod)))
    assert "lastError" not in found
    lines = said(host, "inspect", "worker-0").splitlines()
    assert lines[0] == f"hpn0 of default/worker-0, container {pod.name[:12]}, network rail0"
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines[1:]}
    assert shown["state"] == "attached: ADD has ended, and nothing says that the pod is dead"
    assert shown["interface"] == f"macvlan over rail0, MAC {link['address']}"
    assert shown["now"] == "in the pod, as hpn0"
    host.record(pod).write_text("{")
    lines = said(host, "inspect", pod.name).splitlines()
    assert "unreadable" in lines[1]
    assert "no attachment is called 10.0.0.1" in said(host, "inspect", "10.0.0.1", status=1)
