"""If another project's IPAM plugin refuses to release, the pod can still end, and people can see the leftovers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from netns.collecting import hpn_gc
from support.topology import Host, Pod

from cni import undo

ROOT = Path(__file__).parents[2]
GIVEN = '{"cniVersion":"1.1.0","ips":[{"address":"10.56.0.2/24"}]}'
REFUSAL = '{"cniVersion":"1.1.0","code":133,"msg":"no such pool"}'


def ipam(host: Host, *, refuse: str, add: str = GIVEN) -> str:
    """Install a plugin that answers ADD with ``add``, and refuses a request with matching environment or stdin.  Return
    its CNI_PATH."""
    ok = "cat" if add == GIVEN else f"echo '{add}'; exit 1; cat"
    script = f"""said=$(env; cat)
case "$said" in {refuse}) echo '{REFUSAL}'; exit 1;; esac
[ $CNI_COMMAND != ADD ] || {{ echo '{add}' | {ok}; }}"""
    return host.program("script", script)


def inspect(host: Host) -> tuple[str, dict[str, Any]]:
    """The output of hpn inspect as text and as JSON."""
    command = [sys.executable, "-m", "ctl", "inspect", "--state-dir", str(host.state)]
    said = [
        subprocess.run([*command, *words], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60).stdout
        for words in ([], ["--json"])
    ]
    return said[0], json.loads(said[1])


@pytest.mark.parametrize("command", ["DEL", "ADD", "GC"])
def test_an_add_that_the_ipam_refused(host: Host, pod: Pod, command: str) -> None:
    """After ADD's refusal the plugin also refuses the release of its non-existent allocation, as host-local does with
    an invalid subnet.  So the attachment's next command skips the plugin, whatever the recorded configuration names."""
    path, conf = ipam(host, refuse="*script*"), host.conf(ipam={"type": "script"})
    assert host.refused("ADD", pod, conf, CNI_PATH=path)["code"] == 133
    assert pod.links() == set()
    if command == "GC":
        host.ok("GC", None, host.conf(ipam=..., **{"cni.dev/valid-attachments": []}), CNI_IFNAME="")
    else:
        host.ok(command, pod, host.conf(ipam=...) if command == "ADD" else conf, CNI_PATH=path)
    assert host.record(pod).exists() is (command == "ADD")
    host.ok("DEL", pod, host.conf(ipam=...))
    assert (pod.links(), host.state_files()) == (set(), set())


def test_an_ipam_that_died_is_asked_again(host: Host, pod: Pod) -> None:
    """The record stays until the plugin releases, because without a CNI error it may hold an address."""
    path = host.program("script", f"cat >/dev/null; [ $CNI_COMMAND = ADD ] && exit 7; echo '{REFUSAL}'; exit 1")
    conf = host.conf(ipam={"type": "script"})
    assert host.refused("ADD", pod, conf, CNI_PATH=path)["code"] == 106
    assert host.record(pod).exists()
    host.program("script", "cat >/dev/null")
    host.ok("DEL", pod, conf, CNI_PATH=path)
    assert host.state_files() == set()


@pytest.mark.parametrize("command", ["DEL", "ADD", "GC"])
def test_the_corrected_configuration_releases(host: Host, pod: Pod, command: str) -> None:
    path = ipam(host, refuse="none")
    bad, good = (host.conf(ipam={"type": "script", "pool": pool}) for pool in ("bad", "good"))
    host.ok("ADD", pod, bad, CNI_PATH=path)
    ipam(host, refuse="*bad*")
    assert host.refused("DEL", pod, bad, CNI_PATH=path)["code"] == 133
    assert host.record(pod).exists()
    if command == "GC":
        host.ok("GC", None, good | {"cni.dev/valid-attachments": []}, CNI_PATH=path, CNI_IFNAME="")
    else:
        host.ok(command, pod, good, CNI_PATH=path)
    assert host.record(pod).exists() is (command == "ADD")
    host.ok("DEL", pod, good, CNI_PATH=path)
    assert host.state_files() == set()


def test_corrected_arguments_release(host: Host, pod: Pod) -> None:
    """DEL succeeds with corrected CNI_ARGS: host-local refuses K8S_POD_NAME without IgnoreUnknown."""
    path, conf = ipam(host, refuse="none"), host.conf(ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path, CNI_ARGS="K8S_POD_NAME=p")
    ipam(host, refuse="*K8S_POD_NAME=p*")
    host.ok("DEL", pod, conf, CNI_PATH=path, CNI_ARGS="IgnoreUnknown=1")
    assert host.state_files() == set()


def test_another_networks_configuration_is_not_tried(host: Host, pod: Pod) -> None:
    path = ipam(host, refuse="none")
    host.ok("ADD", pod, host.conf(ipam={"type": "script", "pool": "bad"}), CNI_PATH=path)
    ipam(host, refuse="*bad*")
    assert host.refused("DEL", pod, host.conf(ipam={"type": "other", "pool": "good"}), CNI_PATH=path)["code"] == 133
    assert host.record(pod).exists()


def test_after_so_many_refusals_people_have_to_look(host: Host, pod: Pod) -> None:
    path, conf = ipam(host, refuse="none"), host.conf(ipam={"type": "script"})
    gc = conf | {"cni.dev/valid-attachments": []}
    host.ok("ADD", pod, conf, CNI_PATH=path, CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
    ipam(host, refuse="*CNI_COMMAND=DEL*")
    for _ in range(undo.REFUSALS - 2):
        assert host.refused("DEL", pod, conf, CNI_PATH=path)["code"] == 133
    text, document = inspect(host)
    assert "a/b of rail0: script: no such pool" in text
    assert document["attachments"][0]["trouble"] == "script: no such pool"
    assert host.refused("GC", None, gc, CNI_PATH=path, CNI_IFNAME="")["code"] == 133
    host.ok("DEL", pod, conf, CNI_PATH=path)
    host.ok("GC", None, gc, CNI_PATH=path, CNI_IFNAME="")
    assert pod.links() == set()
    (kept,) = (host.state / "refused" / "rail0").iterdir()
    text, document = inspect(host)
    told = "a/b of rail0 is detached, and its IPAM plugin did not release 10.56.0.2/24: script: no such pool; release"
    assert text == f"{told} them by hand, then remove {kept}\n"
    assert (document["attachments"], document["refused"][0]["file"]) == ([], str(kept))
    ipam(host, refuse="none")
    host.ok("ADD", pod, conf, CNI_PATH=path)
    host.ok("DEL", pod, conf, CNI_PATH=path)
    assert list((host.state / "refused" / "rail0").iterdir()) == [kept]


@pytest.mark.parametrize("code", [5, 11])
def test_who_says_that_another_time_is_better_is_asked_again(host: Host, pod: Pod, code: int) -> None:
    path, conf = ipam(host, refuse="none"), host.conf(ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path)
    host.program("script", f"""cat >/dev/null; echo '{{"code":{code},"msg":"disk is full"}}'; exit 1""")
    for _ in range(undo.REFUSALS + 1):
        assert host.refused("DEL", pod, conf, CNI_PATH=path)["code"] == code
    assert host.record(pod).exists()


def test_a_key_that_is_given_twice_is_in_no_dels_way(host: Host, pod: Pod) -> None:
    """DEL accepts a duplicate key in the caller's configuration, even if the plugin refuses the recorded one."""
    path, conf = ipam(host, refuse="none"), host.conf(ipam={"type": "script"})
    host.ok("ADD", pod, conf, CNI_PATH=path, CNI_ARGS="K8S_POD_NAME=p")
    ipam(host, refuse="*K8S_POD_NAME=p*")
    twice = json.dumps(conf)[:-1] + ', "mtu": 1400, "mtu": 1300}'
    host.ok("DEL", pod, twice.encode(), CNI_PATH=path, CNI_ARGS="IgnoreUnknown=1")
    assert host.state_files() == set()


def test_ours_is_asked_as_often_as_it_takes(host: Host, pod: Pod) -> None:
    """hpn-ipam is never skipped: it knows its leases, and a person can remove the cause of its refusal."""
    host.ok("ADD", pod)
    store = host.state / "ipam" / "rail0"
    store.chmod(0o755)
    for _ in range(undo.REFUSALS + 1):
        assert host.refused("DEL", pod)["code"] == 7
        assert host.record(pod).exists()
    store.chmod(0o700)
    host.ok("DEL", pod)
    assert host.state_files() == set()


def test_hpn_gc_says_why(host: Host, pod: Pod) -> None:
    """hpn gc reports the refusal, as it has no other configuration of the network to try."""
    path = ipam(host, refuse="none")
    host.ok("ADD", pod, host.conf(ipam={"type": "script"}), CNI_PATH=path)
    ipam(host, refuse="*CNI_COMMAND=DEL*")
    pod.gone()
    done = hpn_gc(host, CNI_PATH=path, PATH=os.environ["PATH"])
    assert (done.returncode, "no such pool" in done.stdout) == (1, True), done.stdout
