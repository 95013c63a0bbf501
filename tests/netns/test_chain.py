"""Chain mode: one ADD of the cluster's conflist attaches all devices of the pod's prepared claims, or none."""

import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import drawn
import pytest
from support import chained
from support.chained import conf, variables
from support.killing import killed_at
from support.topology import PROGRAMS, Host, Pod, ip, until

from base.protocol.errors import IoFailure
from base.state import claims, durable, journal
from cni import collect
from cni.main import run as hpn


@pytest.fixture(autouse=True)
def prepared_claims(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FOLDER", f"{host.tmp_path}/claims")
    chained.add_rails()


def add(host: Host, pod: Pod, **keys: Any) -> dict[str, Any]:
    return host.ok("ADD", pod, conf(host, **keys), **variables(pod))


def refused(host: Host, command: str, pod: Pod, **keys: Any) -> dict[str, Any]:
    return host.refused(command, pod, conf(host, **keys), **variables(pod))


def delete(host: Host, pod: Pod, **keys: Any) -> None:
    assert host.ok("DEL", pod, conf(host, **keys), **variables(pod)) == {}


def addresses(pod: Pod) -> dict[str, set[str]]:
    return {name: pod.addresses(name) for name in pod.links()}


ATTACHED = {f"hpn{n}": {f"10.56.{n}.2/30", f"fd00:{56 + n}::2/126"} for n in range(len(chained.RAILS))}


def gates(found: claims.Claim) -> list[bool]:
    """Whether the gate of each device is open."""
    return [Path(claims.gate(found.uid, number)).exists() for number in range(len(found.devices))]


def test_attaches_and_detaches(host: Host, pod: Pod) -> None:
    found = chained.prepared(host, pod)
    assert add(host, pod) == chained.PREVIOUS
    assert addresses(pod) == ATTACHED
    links = [pod.link(name) for name in sorted(pod.links())]
    assert all(link and link["linkinfo"]["info_kind"] == "macvlan" and "UP" in link["flags"] for link in links)
    masters = {i["ifname"]: i["ifindex"] for i in ip("link")}
    assert [link["link_index"] for link in links if link] == [masters[name] for name in chained.RAILS]
    assert "02:00:00:00:00:07" not in {link["address"] for link in links if link}  # which is for eth0
    assert host.call("CHECK", pod, conf(host), **variables(pod)).exit_code == 0
    assert gates(found) == [True, True]
    delete(host, pod)
    assert pod.links() == set()
    assert host.state_files() == set()
    assert gates(found) == [False, False]
    delete(host, pod)


def test_two_claims_and_devices_that_others_attach(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    others = [chained.device(host, 1, attach=how, interface="") for how in ("multus", "none")]
    first = chained.device(host, 0, config={"runtimeConfig": None})  # as without the key
    chained.prepared(host, pod, [first, *others], "first")
    # The allocated master counts, and the claim's other requests stay.
    wide = {
        "ipam": {"type": "hpn-ipam", "subnet": "10.56.1.0/24", "sticky": 3600},
        "master": "rail0",
        "runtimeConfig": {"sticky": "trainer-0"},
    }
    own = chained.device(host, 1, ips=("10.56.1.9/24",), mac="02:00:00:00:00:09", config=wide)
    chained.prepared(host, pod, [own], "second")
    chained.prepared(host, make_pod(), name="another pod's")
    add(host, pod)
    assert addresses(pod)["hpn0"] == ATTACHED["hpn0"]
    assert pod.addresses("hpn1") == {"10.56.1.9/24"}
    assert (pod.link("hpn1") or {})["address"] == "02:00:00:00:00:09"
    assert (pod.link("hpn1") or {})["link_index"] == next(i["ifindex"] for i in ip("link") if i["ifname"] == "rail1")
    delete(host, pod)
    assert "trainer-0" in (host.state / "ipam/net1/leases").read_text()


def test_a_claim_that_cannot_be_read(host: Host, pod: Pod) -> None:
    """ADD attaches nothing, because kubelet sends no second ADD after a success with a part of the interfaces."""
    chained.prepared(host, pod, [chained.device(host, 0)], "first")
    file = Path(claims.FOLDER) / f"{chained.prepared(host, pod, [chained.device(host, 1)], 'second').uid}.json"
    text = file.read_text()
    file.write_text(text[:-3])
    assert refused(host, "ADD", pod)["code"] == 108
    assert (pod.links(), host.state_files()) == (set(), set())
    file.write_text(text)
    add(host, pod)
    assert addresses(pod) == ATTACHED
    delete(host, pod)


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_a_pod_without_a_claim_passes_through(host: Host, pod: Pod, make_pod: Callable[[], Pod], command: str) -> None:
    chained.prepared(host, make_pod())
    before = host.picture(pod)
    reply = host.call(command, pod, conf(host), **variables(pod))
    assert (reply.exit_code, reply.log) == (0, ())
    assert host.picture(pod) == before
    assert chained.shown(reply.stdout or "null") == (chained.PREVIOUS if command == "ADD" else None)
    assert not list(host.state.rglob("*"))


def test_a_pod_that_joins_a_claim(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    """It gets its own interfaces, or does not start; kubelet's file names it, and the claim's state does not."""
    wide = [{"ipam": {"type": "hpn-ipam", "subnet": f"10.56.{n}.0/24"}} for n in (0, 1)]
    devices = [chained.device(host, n, config=config) for n, config in enumerate(wide)]
    found, joining = chained.prepared(host, pod, devices), make_pod()
    claims.save(replace(found, kubelet=f"{host.tmp_path}"))
    entry = {"ClaimUID": found.uid, "PodUIDs": {chained.uid(one): {} for one in (pod, joining)}}
    file = host.tmp_path / "dra_manager_state"
    file.write_text(json.dumps({"Data": json.dumps({"ClaimInfoStateList": [entry]}), "Checksum": 1}))
    for one in (pod, joining):
        add(host, one)
        assert one.links() == {"hpn0", "hpn1"}
    delete(host, pod)
    assert gates(found) == [True, True]
    delete(host, joining)
    assert gates(found) == [False, False]


def test_a_pod_of_no_cluster_passes_through(host: Host, pod: Pod) -> None:
    chained.prepared(host, pod)
    assert host.ok("ADD", pod, conf(host), CNI_ARGS="") == chained.PREVIOUS
    assert pod.links() == set()


def test_all_rails_take_a_step_before_one_takes_the_next(host: Host, pod: Pod) -> None:
    """The rails are unlike: a program gives the first one its address, and finds both links and the second one's lease.
    Only the second waits for duplicate detection."""
    seen = host.tmp_path / "seen"
    answer = '{"cniVersion":"1.1.0","ips":[{"address":"10.58.0.2/24"}]}'
    script = f"""cat >/dev/null; [ $CNI_COMMAND = ADD ] || exit 0
ip netns exec {pod.name} ip -br link >{seen}; cat {host.state}/ipam/net1/leases >>{seen}; echo '{answer}'"""
    path = host.program("script", script)
    chained.prepared(host, pod, [chained.device(host, 0, config={"ipam": {"type": "script"}}), chained.device(host, 1)])
    host.ok("ADD", pod, conf(host), **variables(pod), CNI_PATH=path)
    assert all(found in seen.read_text() for found in ("hpn0@", "hpn1@", "10.56.1.2"))
    assert addresses(pod) == ATTACHED | {"hpn0": {"10.58.0.2/24"}}
    host.ok("DEL", pod, conf(host), **variables(pod), CNI_PATH=path)
    assert (pod.links(), host.state_files()) == (set(), set())


def test_one_that_fails_undoes_the_others(host: Host, pod: Pod) -> None:
    before = host.picture(pod)
    late = host.program("late", '[ $CNI_COMMAND = DEL ] || { echo \'{"code":133,"msg":"away"}\'; exit 1; }')
    for keys, code in (
        ({"id": "rail9"}, 101),  # in the plan
        ({"config": {"mtu": 9000}}, 7),
        ({"config": {"ipam": {"type": "hpn-ipam", "subnet": "10.56.1.0/31", "rangeStart": "10.56.1.9"}}}, 7),
        ({"config": {"ipam": {"type": "late"}}}, 133),  # once the links are there
        ({"config": {"nonsense": 1}}, 2),
        ({"interface": "hpn0"}, 7),
        ({"interface": "lo"}, 100),
        ({"interface": "a/b"}, 7),
        ({"config": {"name": "../up"}}, 7),
    ):
        claim = chained.prepared(host, pod, [chained.device(host, 0), chained.device(host, 1, **keys)])
        error = host.refused("ADD", pod, conf(host), **variables(pod), CNI_PATH=late)
        assert error["code"] == code, error
        assert "while configuring hpn0" not in error.get("details", ""), "it is no reason why hpn1 failed"
        assert host.picture(pod) == before, keys
        claims.forget(claim.uid)


def test_a_chain_that_cannot_be_written(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk.  ADD changes nothing."""
    chained.prepared(host, pod)

    def full(*_: Any, **__: Any) -> None:
        raise IoFailure("no room")

    with monkeypatch.context() as during:
        during.setattr(durable, "write", full)
        assert refused(host, "ADD", pod)["code"] == IoFailure.code
    assert pod.links() == set()
    assert host.state_files() == set()
    delete(host, pod)


def test_a_second_add_is_refused_until_del(host: Host, pod: Pod) -> None:
    chained.prepared(host, pod)
    add(host, pod)
    assert refused(host, "ADD", pod)["code"] == 100
    assert addresses(pod) == ATTACHED
    host.rewrite(host.state / "attachments/net1" / f"{pod.name}:hpn1.json", complete=False)
    add(host, pod)  # a chain that is not complete is made anew
    assert addresses(pod) == ATTACHED
    # So is a complete one after a killed agent, whose caller got no reply.
    host.ok("ADD", pod, conf(host), **variables(pod), HPN_AGENT_ENDED="1")
    assert addresses(pod) == ATTACHED
    delete(host, pod)
    assert host.state_files() == set()


def test_check_compares_every_rail(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    chained.prepared(host, pod)
    error = refused(host, "CHECK", pod)
    assert (error["code"], "not attached" in error["msg"], "default/rails" in error["msg"]) == (107, True, True)
    add(host, pod)
    for name in ATTACHED:
        pod.ip("link", "set", name, "down")
        error = refused(host, "CHECK", pod)
        assert (error["code"], name in error["msg"]) == (107, True)
        pod.ip("link", "set", name, "up")
    until(lambda: host.call("CHECK", pod, conf(host), **variables(pod)).exit_code == 0)
    assert host.refused("CHECK", pod, conf(host), **variables(pod), CNI_NETNS=make_pod().path)["code"] == 107
    pod.remade()
    assert refused(host, "CHECK", pod)["code"] == 107
    delete(host, pod)


def test_del_without_the_claim_and_without_the_key(host: Host, pod: Pod) -> None:
    """DEL works from the journal: after Unprepare, and after the key has left the conflist."""
    claim = chained.prepared(host, pod)
    for keys in ({}, {"claims": ...}):
        claims.save(claim)
        add(host, pod)
        claims.forget(claim.uid)
        delete(host, pod, **keys)
        assert pod.links() == set(), keys
        assert host.state_files() == set(), keys


def test_an_attachment_from_before_chain_mode(host: Host, pod: Pod) -> None:
    """DEL and GC undo an attachment that the network had before its configuration changed."""
    plain = host.conf(name="cluster")
    host.ok("ADD", pod, plain, CNI_IFNAME="eth0")
    delete(host, pod)
    assert (pod.links(), host.state_files()) == (set(), set())
    host.ok("ADD", pod, plain, CNI_IFNAME="eth0")
    host.ok("GC", None, chained.gc(host))
    assert pod.links() == set()


def test_gc_keeps_what_is_listed(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    other = make_pod()
    for one in (pod, other):
        ranges = [[{"subnet": "10.57.0.0/24"}]]
        devices = [chained.device(host, n, config={"ipam": {"type": "hpn-ipam", "ranges": ranges}}) for n in range(2)]
        chained.prepared(host, one, devices)
        add(host, one)
    # GC of a class's network, which has no list of the chain's pods, and GC without a list of living pods.
    host.ok("GC", None, host.conf(name="net0") | {"cni.dev/valid-attachments": []})
    host.ok("GC", None, conf(host, prevResult=...))
    assert (pod.links(), other.links()) == (set(ATTACHED), set(ATTACHED))
    host.ok("GC", None, chained.gc(host, other))
    assert (pod.links(), other.links()) == (set(), set(ATTACHED))
    assert host.leases() == {"10.57.0.3"}
    host.ok("GC", None, chained.gc(host))
    assert (other.links(), host.state_files()) == (set(), set())


def test_the_end_of_an_earlier_sandbox(host: Host, pod: Pod, make_pod: Callable[[], Pod]) -> None:
    """GC of a sandbox that the runtime has lost leaves the gates of the pod's present one open."""
    found, new = chained.prepared(host, pod), make_pod()
    add(host, pod)
    pod.gone()
    # Until the kernel has removed the old interfaces, the new ones find their addresses in use.
    until(lambda: not host.call("ADD", new, conf(host), **variables(pod)).exit_code, 120)
    host.ok("GC", None, chained.gc(host, new))
    assert gates(found) == [True, True]
    host.ok("CHECK", new, conf(host), **variables(pod))
    host.ok("DEL", new, conf(host), **variables(pod))
    assert (gates(found), host.leases()) == ([False, False], set())


def test_gc_without_a_list_undoes_a_dead_pods(host: Host, make_pod: Callable[[], Pod]) -> None:
    pod = make_pod()
    chained.prepared(host, pod)
    add(host, pod)
    pod.gone()
    host.ok("GC", None, conf(host, prevResult=...))
    assert host.state_files() == set()


def test_a_second_chain_of_a_pod(host: Host, pod: Pod) -> None:
    """A definition with claims beside the cluster's network: its ADD fails, and its DEL removes only its own."""
    chained.prepared(host, pod)
    add(host, pod)
    second, own = conf(host, name="definition"), {**variables(pod), "CNI_IFNAME": "net9"}
    assert host.refused("ADD", pod, second, **own)["code"] == 100
    assert host.refused("ADD", pod, second, **own, HPN_AGENT_ENDED="1")["code"] == 100
    host.ok("DEL", pod, second, **own)
    assert addresses(pod) == ATTACHED
    assert not [name for name in host.state_files() if "definition" in name]
    delete(host, pod)
    assert (pod.links(), host.state_files()) == (set(), set())


def test_one_that_cannot_be_undone_holds_up_no_other(host: Host, pod: Pod) -> None:
    script = 'cat >/dev/null; case $CNI_COMMAND in ADD) echo "$A";; DEL) echo "$B"; exit 1;; esac'
    answer = '{"cniVersion":"1.1.0","ips":[{"address":"10.58.0.2/24"}]}'
    path = host.program("script", f'A=\'{answer}\' B=\'{{"code":133,"msg":"away"}}\'\n{script}')
    claimed = [chained.device(host, 0, config={"ipam": {"type": "script"}}), chained.device(host, 1)]
    chained.prepared(host, pod, claimed)
    host.ok("ADD", pod, conf(host), **variables(pod), CNI_PATH=path)
    error = host.refused("DEL", pod, conf(host), **variables(pod), CNI_PATH=path)
    assert error["code"] == 133
    assert (pod.links(), host.leases()) == (set(), set())
    host.program("script", "cat >/dev/null")
    host.ok("DEL", pod, conf(host), **variables(pod), CNI_PATH=path)
    assert host.state_files() == set()


def test_status(host: Host) -> None:
    host.ok("STATUS", None, conf(host, prevResult=...))
    error = host.refused("STATUS", None, conf(host, prevResult=..., claims="yes"))
    assert (error["code"], '"yes"' in error["msg"]) == (7, True)
    shutil.rmtree(host.state)
    host.state.touch()
    assert host.refused("STATUS", None, conf(host, prevResult=...))["code"] == 50


@pytest.mark.parametrize(
    ("keys", "code", "word"),
    [
        ({"prevResult": ...}, 7, "prevResult"),
        ({"claims": 1}, 7, "claims 1"),
        ({"master": "rail0"}, 2, "master"),
        ({"ipam": {"type": "hpn-ipam"}}, 2, "ipam"),
        ({"stateDir": "/run/own"}, 7, 'stateDir "/run/own"'),
    ],
)
def test_refused(host: Host, pod: Pod, keys: dict[str, Any], code: int, word: str) -> None:
    chained.prepared(host, pod)
    before = host.picture(pod)
    error = refused(host, "ADD", pod, **keys)
    assert (error["code"], word in error["msg"]) == (code, True), error
    assert host.picture(pod) == before


@pytest.mark.parametrize("held", ["chain", "attachment"])
def test_waits_for_the_locks_of_all(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch, held: str) -> None:
    """ADD and DEL work under the locks of the chain and of each attachment."""
    chained.prepared(host, pod)
    monkeypatch.setattr(journal, "LOCK_TIMEOUT", 0.0)
    name = "cluster" if held == "chain" else "net1"
    title = f"{name}/{pod.name}:{'eth0' if held == 'chain' else 'hpn1'}"
    with journal.locked(host.state, held, title):
        assert refused(host, "ADD", pod)["code"] == 11
    add(host, pod)
    with journal.locked(host.state, held, title):
        assert refused(host, "DEL", pod)["code"] == 11
    assert addresses(pod) == ATTACHED
    delete(host, pod)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_an_abandoned_request_changes_nothing(host: Host, pod: Pod, command: str) -> None:
    chained.prepared(host, pod)
    add(host, pod)
    if command == "ADD":  # it would undo what is not complete
        host.rewrite(host.state / "attachments/net1" / f"{pod.name}:hpn1.json", complete=False)
    before = host.picture(pod)
    asked = replace(chained.request(host, command, pod), abandoned=lambda: True)
    assert json.loads(hpn(asked, PROGRAMS).stdout)["code"] == 11
    assert host.picture(pod) == before


def test_a_gc_that_began_before_the_add(host: Host, pod: Pod) -> None:
    """GC leaves alone a chain that is younger than its list."""
    chained.prepared(host, pod)
    add(host, pod)
    with subprocess.Popen(["sleep", "3600"]) as old:
        file = host.state / "chains/cluster" / f"{pod.name}:eth0.json"
        began = time.time()
        until(lambda: time.time() > began + 1)
        os.utime(file, ns=(time.time_ns(), time.time_ns()))
        asked = replace(host.request("GC", None, chained.gc(host)), process=old.pid)
        assert hpn(asked, PROGRAMS).exit_code == 0
        old.kill()
    assert pod.links() == set(ATTACHED)
    delete(host, pod)


def test_a_lease_that_cannot_be_synced(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """ADD fails and undoes all; DEL reports it, and the next one has nothing left to do."""
    chained.prepared(host, pod)
    add(host, pod)

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        assert refused(host, "DEL", pod)["code"] == 5
    delete(host, pod)
    assert (pod.links(), host.state_files()) == (set(), set())
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        assert refused(host, "ADD", pod)["code"] == 5
    delete(host, pod)
    assert (pod.links(), host.state_files()) == (set(), set())


def by_del(host: Host, pod: Pod) -> None:
    delete(host, pod)


def by_a_new_add(host: Host, pod: Pod) -> None:
    reply = host.call("ADD", pod, conf(host), **variables(pod))
    if reply.exit_code:
        assert '"code":100' in reply.stdout, reply.stdout
        assert addresses(pod) == ATTACHED
        delete(host, pod)
        add(host, pod)
    assert addresses(pod) == ATTACHED
    delete(host, pod)


def by_gc(host: Host, pod: Pod) -> None:
    host.ok("GC", None, chained.gc(host))


@pytest.mark.parametrize("recover", [by_del, by_a_new_add, by_gc])
@pytest.mark.parametrize("command", ["ADD", "DEL", "GC"])
def test_killed_at_every_step(host: Host, pod: Pod, command: str, recover: Callable[[Host, Pod], None]) -> None:
    """All attachments or none are left after the next command, whenever the one before was killed."""
    rail = {"policyRouting": True, "sysctl": {"net.core.somaxconn": "77"}}
    chained.prepared(host, pod, [chained.device(host, 0, config=rail), chained.device(host, 1, config=rail)])
    strangers, rules = {i["ifname"] for i in ip("link")}, pod.ip("rule", "show")
    for step in drawn.steps():
        if command != "ADD":
            add(host, pod)
        asked = host.request("GC", None, chained.gc(host)) if command == "GC" else chained.request(host, command, pod)
        killed = killed_at(step, asked)
        recover(host, pod)
        assert pod.links() == set(), f"link left after step {step}"
        assert (pod.ip("rule", "show"), pod.sysctl("core/somaxconn") == "77") == (rules, False), f"after step {step}"
        assert host.state_files() == set(), f"files left after step {step}"
        if not killed:
            break
    assert {i["ifname"] for i in ip("link")} == strangers
    assert step > 20


def test_what_a_killed_add_left_is_swept(host: Host, make_pod: Callable[[], Pod]) -> None:
    """A chain of a dead pod goes with its last attachment, and without one at once."""
    for gone in (True, False):
        pod = make_pod()
        chained.prepared(host, pod)
        add(host, pod)
        if gone:
            pod.gone()
        else:
            for number in range(2):
                durable.remove(host.state / f"attachments/net{number}" / f"{pod.name}:hpn{number}.json")
        of_its_own = {"name": "net2", "ipam": {"type": "hpn-ipam", "subnet": "10.59.0.0/24"}}
        whole = make_pod()
        chained.prepared(host, whole, [chained.device(host, 0, config=of_its_own)])
        add(host, whole)
        assert all(error is None for _, error in collect.sweep(host.state, PROGRAMS))
        delete(host, whole)
        assert whole.links() == set()
        assert not list(host.state.glob("chains/*/*"))
