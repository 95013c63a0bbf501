"""Attachments of devices that Kubernetes allocated by a claim, and that Multus handed on."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import drawn
import pytest
from support.killing import killed_at
from support.topology import Host, Pod, ip

from base.protocol.errors import IoFailure
from base.state import claims, durable, gates
from base.state.claims import Claim, ClaimedDevice
from cni import commands
from cni.features import claimed
from ctl.main import main

UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
POD = "a1b2c3d4-0000-4000-8000-000000000001"
ARGS = f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=a;K8S_POD_UID={POD}"
MASTER = ClaimedDevice(
    request="rails",
    pool="node1/if-rail0",
    device="rail0",
    share="s1",
    id="rail0",
    kind="master",
    resource="example.com/rail0",
    attach="multus",
    ips=("10.56.0.77/24",),
    mac="02:00:00:00:00:77",
    attributes={"kind": {"string": "master"}},
)
CLAIM = Claim(UID, "default", "a-rails-x7f2k", (POD,), (MASTER,), pod_claim="rails")


@pytest.fixture(autouse=True)
def folder(host: Host, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = host.tmp_path / "claims"
    monkeypatch.setattr(claims, "FOLDER", str(path))
    monkeypatch.setattr(commands, "CLAIMS_DIR", str(path))
    return path


def conf(host: Host, **keys: Any) -> dict[str, Any]:
    """Multus's configuration for a network whose resource the pod has by a claim."""
    return host.conf(master=..., deviceID="rail0", pciBusID="rail0", **keys)


def gate(folder: Path, number: int = 0) -> dict[str, Any]:
    """The metadata at the gate; both versions have the same content."""
    newer, older = map(json.loads, (folder / f"{UID}.d" / f"{number}").read_text().splitlines())
    assert (newer.pop("apiVersion"), older.pop("apiVersion")) == (
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    )
    assert newer == older
    return dict(newer)


def test_the_claims_keys_and_its_gate(host: Host, pod: Pod, folder: Path) -> None:
    """The claim's address, MAC and master; the gate opens with ADD and closes with DEL."""
    claims.save(CLAIM)
    result = host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    link = pod.link()
    assert link
    assert link["address"] == "02:00:00:00:00:77"
    assert pod.addresses() == {"10.56.0.77/24", "fd00:56::2/64"}
    body = durable.read(host.record(pod))
    assert body
    assert body["claim"] == f"{UID}/0"
    assert gate(folder) == {
        "kind": "DeviceMetadata",
        "metadata": {"name": "a-rails-x7f2k", "namespace": "default", "uid": UID, "generation": 1},
        "podClaimName": "rails",
        "requests": [
            {
                "name": "rails",
                "devices": [
                    {
                        "driver": "hpn-cni.io",
                        "pool": "node1/if-rail0",
                        "name": "rail0",
                        "attributes": {"kind": {"string": "master"}},
                        "networkData": {
                            "interfaceName": "hpn0",
                            "ips": ["10.56.0.77/24", "fd00:56::2/64"],
                            "hardwareAddress": "02:00:00:00:00:77",
                        },
                    }
                ],
            }
        ],
    }
    assert (folder / f"{UID}.d/0").stat().st_mode & 0o777 == 0o644
    assert host.checked(pod, conf(host), result, CNI_ARGS=ARGS).exit_code == 0
    assert [record.claim for record in gates.records(UID)] == [f"{UID}/0"]
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)
    assert list((folder / f"{UID}.d").iterdir()) == []
    assert claims.load(UID) == CLAIM
    assert host.state_files() == set()


def test_metadata_under_the_units_umask(host: Host, pod: Pod, folder: Path) -> None:
    """Containers that are not the host's root read it, whichever of agent and hpn node wrote it."""
    claims.save(CLAIM)
    before = os.umask(0o077)
    try:
        host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    finally:
        os.umask(before)
    assert (folder / f"{UID}.d/0").stat().st_mode & 0o777 == 0o644
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)


@pytest.mark.parametrize("has_selinux", [False, True])
def test_metadatas_label(
    host: Host, pod: Pod, folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_selinux: bool
) -> None:
    """Only SELinux gives a new file a label: a container may read it then."""
    if has_selinux:
        monkeypatch.setattr(os, "getxattr", lambda *_: b"system_u:object_r:var_run_t:s0\0")
    claims.save(CLAIM)
    host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    assert ("security.selinux" in os.listxattr(folder / f"{UID}.d/0")) == has_selinux
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)


def test_a_pod_that_may_do_without_an_interface(host: Host, pod: Pod, folder: Path) -> None:
    """An extended resource's: its gate is open before ADD and after DEL, and describes the interface in between."""
    claim = replace(CLAIM, devices=(replace(MASTER, waits=False),))
    claims.save(claim)

    def described() -> bool:
        return "networkData" in gate(folder)["requests"][0]["devices"][0]

    gates.settle(claim, 0)
    assert not described()
    host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    assert pod.addresses() >= {"10.56.0.77/24"}
    assert described()
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)
    assert not described()


def test_a_network_that_does_not_name_the_device(host: Host, pod: Pod, folder: Path) -> None:
    """Its definition has no resourceName, so Multus gives no deviceID."""
    claim = replace(CLAIM, devices=(replace(MASTER, waits=False),))
    claims.save(claim)
    gates.settle(claim, 0)
    host.ok("ADD", pod, host.conf(), CNI_ARGS=ARGS)
    assert pod.link()
    assert gate(folder)
    host.ok("DEL", pod, host.conf(), CNI_ARGS=ARGS)


def test_what_inspect_shows(host: Host, pod: Pod, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A claim that awaits its interface; then the attachment's claim, and its UID when it is not prepared any more."""

    def shown(*words: str) -> str:
        assert main(["hpn", "inspect", *words, "--state-dir", str(host.state)]) == 0
        return capsys.readouterr().out

    host.state.mkdir()
    claims.save(CLAIM)
    waiting = {"claim": "default/a-rails-x7f2k", "request": "rails", "device": "rail0", "attach": "multus"}
    assert json.loads(shown("--json"))["claims"] == [waiting]
    assert "prepared by hpn node, but not attached:" in shown()
    host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    document = json.loads(shown("--json"))
    (attachment,) = document["attachments"]
    named = {"uid": UID, "name": "default/a-rails-x7f2k", "request": "rails", "device": "rail0"}
    assert (document["claims"], attachment["claim"]) == ([], named)
    assert "claim      default/a-rails-x7f2k, request rails" in shown("hpn0")
    claims.forget(UID)
    assert f"claim      {UID}, not prepared now" in shown("hpn0")
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)


def test_a_request_of_two_devices(host: Host, pod: Pod, folder: Path) -> None:
    """The gate opens with the last interface of the request, and closes with the first that goes."""
    twin = replace(MASTER, id="fabric", device="fabric", share="s2", ips=(), mac="", attributes={})
    claims.save(replace(CLAIM, devices=(replace(MASTER, ips=(), mac=""), twin)))
    ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.57.0.0/24"}]]}
    second = conf(host, name="rail1", ipam=ipam) | {"deviceID": "fabric", "pciBusID": "fabric"}
    host.ok("ADD", pod, second, CNI_IFNAME="hpn1", CNI_ARGS=ARGS)
    assert not (folder / f"{UID}.d").exists()
    host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    (request,) = gate(folder)["requests"]
    assert [one["networkData"]["interfaceName"] for one in request["devices"]] == ["hpn0", "hpn1"]
    host.ok("DEL", pod, second, CNI_IFNAME="hpn1", CNI_ARGS=ARGS)
    assert list((folder / f"{UID}.d").iterdir()) == []
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)


@pytest.mark.parametrize("names", [("", ""), ("hpn0", "hpn1"), ("", "hpn0")])
def test_two_shares_of_one_device(host: Host, pod: Pod, folder: Path, names: tuple[str, str]) -> None:
    """Each attachment gets a share of its own, in a new sandbox too: the one that names it, or one that is free."""
    one = replace(MASTER, ips=(), mac="")
    shares = tuple(replace(one, share=f"s{n}", interface=name) for n, name in enumerate(names))
    claims.save(replace(CLAIM, devices=shares))
    ipam = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.57.0.0/24"}]]}
    second = conf(host, name="rail1", ipam=ipam)
    for _ in range(2):
        host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
        assert list(folder.glob("*.d/*")) == []
        host.ok("ADD", pod, second, CNI_IFNAME="hpn1", CNI_ARGS=ARGS)
        assert {record.claim for record in gates.records(UID)} == {f"{UID}/0", f"{UID}/1"}
        assert len(gate(folder)["requests"][0]["devices"]) == 2
        for network, name in ((second, "hpn1"), (conf(host), "hpn0")):
            host.ok("DEL", pod, network, CNI_IFNAME=name, CNI_ARGS=ARGS)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_every_step(host: Host, pod: Pod, folder: Path, command: str) -> None:
    """An open gate means a complete attachment, wherever the command is killed; DEL closes it."""
    claims.save(CLAIM)
    path = folder / f"{UID}.d/0"
    for step in drawn.steps():
        if command == "DEL":
            host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
        killed = killed_at(step, host.request(command, pod, conf(host), CNI_ARGS=ARGS))
        if path.exists():
            assert "10.56.0.77/24" in pod.addresses()
            assert [record.complete for record in gates.records(UID)] == [True]
        host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)
        assert pod.links() == set(), f"link left after step {step}"
        assert host.state_files() == set(), f"files left after step {step}"
        assert not path.exists(), f"gate left after step {step}"
        if not killed:
            break
    assert step > 10


def test_another_pods_device(host: Host, pod: Pod) -> None:
    """A device that one claim has alone is refused to a pod for which the claim is not prepared."""
    claims.save(replace(CLAIM, devices=(replace(MASTER, kind="vf", share=""),)))
    for args in (ARGS.replace(POD, POD.replace("1", "2")), "IgnoreUnknown=1"):
        before = host.picture(pod)
        error = host.refused("ADD", pod, conf(host), CNI_ARGS=args)
        assert error["code"] == 109
        assert "device rail0: Kubernetes allocated it to claim default/a-rails-x7f2k" in error["msg"]
        assert host.picture(pod) == before


def test_a_shared_device_is_for_other_pods_too(host: Host, pod: Pod, folder: Path) -> None:
    """A pod without a claim attaches to the same master as its network says, and opens no gate."""
    claims.save(CLAIM)
    others = ARGS.replace(POD, POD.replace("1", "2"))
    host.ok("ADD", pod, conf(host) | {"master": "rail0"}, CNI_ARGS=others)
    assert pod.addresses() == {"10.56.0.2/24", "fd00:56::2/64"}
    assert not (folder / f"{UID}.d").exists()
    host.ok("DEL", pod, conf(host))


def test_an_ended_claim_gives_nothing(host: Host, pod: Pod) -> None:
    claims.save(replace(CLAIM, ended=True, devices=(replace(MASTER, kind="vf"),)))
    assert host.refused("ADD", pod, conf(host), CNI_ARGS=ARGS)["code"] == 109


def test_the_claims_master_by_its_altname(host: Host, pod: Pod) -> None:
    claims.save(CLAIM)
    ip("link", "property", "add", "dev", "rail0", "altname", "the-fabric-of-rail-0")
    host.ok("ADD", pod, conf(host) | {"master": "the-fabric-of-rail-0"}, CNI_ARGS=ARGS)
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)


@pytest.mark.parametrize(
    ("change", "keys", "words"),
    [
        ({"interface": "net1"}, {}, "CNI_IFNAME=hpn0: claim default/a-rails-x7f2k names the interface 'net1'"),
        (
            {"kind": "vf", "attach": "none"},
            {},
            "device rail0: claim default/a-rails-x7f2k has it with attach 'none', so its network is not for Multus",
        ),
        ({}, {"master": "fabric"}, "master 'fabric': Kubernetes allocated 'rail0' by claim default/a-rails-x7f2k"),
        ({}, {"master": ["fabric"]}, "master ['fabric']: Kubernetes allocated 'rail0'"),
        ({}, {"master": "y" * 200}, "Kubernetes allocated 'rail0'"),
        ({}, {"runtimeConfig": {"ips": ["10.56.0.8/24"]}}, 'ips ["10.56.0.8/24"]: claim default/a-rails-x7f2k has ips'),
        ({}, {"runtimeConfig": {"mac": "02:00:00:00:00:08"}}, 'has mac "02:00:00:00:00:77"; remove one'),
    ],
)
def test_what_contradicts_the_claim(
    host: Host, pod: Pod, change: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    claims.save(replace(CLAIM, devices=(replace(MASTER, **change),)))
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host) | keys, CNI_ARGS=ARGS)
    assert (error["code"], words in error["msg"]) == (7, True), error
    assert host.picture(pod) == before


def test_the_same_address_from_both_places(host: Host, pod: Pod) -> None:
    claims.save(CLAIM)
    both = conf(host, runtimeConfig={"ips": ["10.56.0.77/24"], "deviceID": "rail0"})
    host.ok("ADD", pod, both, CNI_ARGS=ARGS)
    assert "10.56.0.77/24" in pod.addresses()
    host.ok("DEL", pod, both)


def test_a_gate_that_cannot_open(host: Host, pod: Pod, folder: Path) -> None:
    """ADD fails and undoes the attachment, because the containers would wait without end."""
    claims.save(CLAIM)
    (folder / f"{UID}.d").write_text("a file in the directory's place")
    before = host.picture(pod)
    error = host.refused("ADD", pod, conf(host), CNI_ARGS=ARGS)
    assert error["code"] == IoFailure.code
    assert pod.links() == set()
    assert host.picture(pod) == before


def test_a_claim_that_goes_during_add(host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes 1.36 may give up the claim of a living pod.  Its containers would wait in this sandbox without end."""
    claims.save(CLAIM)
    before = host.picture(pod)
    attached = claimed.attached
    monkeypatch.setattr(claimed, "attached", lambda made: (claims.forget(UID), attached(made)))
    error = host.refused("ADD", pod, conf(host), CNI_ARGS=ARGS)
    assert (error["code"], f"its claim {UID} is not prepared any more" in error["msg"]) == (11, True), error
    assert host.picture(pod) == before


def test_a_claim_that_is_gone_at_the_end(host: Host, pod: Pod, folder: Path) -> None:
    """DEL needs no claim."""
    claims.save(CLAIM)
    host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    claims.forget(UID)
    assert list(folder.iterdir()) == []
    host.ok("DEL", pod, conf(host))
    assert host.state_files() == set()


def test_an_unreadable_claim_holds_up_no_del(host: Host, pod: Pod, folder: Path) -> None:
    """Also one that another version wrote; the gate closes."""
    claims.save(CLAIM)
    host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    durable.write(folder / f"{UID}.json", {**CLAIM.to_json(), "ofAnotherVersion": 1})
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)
    assert pod.links() == set()
    assert list((folder / f"{UID}.d").iterdir()) == []


def test_a_claim_of_two_pods(host: Host, pod: Pod, folder: Path, make_pod: Callable[[], Pod]) -> None:
    """The gate stays open until both are detached: a container of the other one may start again.  It describes an
    interface only if no other pod has one."""
    other = POD.replace("1", "2")
    claims.save(replace(CLAIM, pods=(POD, other), pod_claim="", devices=(replace(MASTER, ips=(), mac=""),)))
    both = ((pod, ARGS), (make_pod(), ARGS.replace(POD, other)))
    for one, args in both:
        host.ok("ADD", one, conf(host), CNI_ARGS=args)
        (shown,) = gate(folder)["requests"][0]["devices"]
        assert ("networkData" in shown) == (one == pod)
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)
    (shown,) = gate(folder)["requests"][0]["devices"]
    assert shown["networkData"]["ips"][0] in both[1][0].addresses()
    host.ok("DEL", both[1][0], conf(host), CNI_ARGS=both[1][1])
    assert list((folder / f"{UID}.d").iterdir()) == []


@pytest.mark.parametrize("is_readable", [True, False])
def test_the_end_of_an_earlier_sandbox(
    host: Host, pod: Pod, folder: Path, make_pod: Callable[[], Pod], *, is_readable: bool
) -> None:
    """A runtime that has lost a sandbox makes another, and undoes the first one late.  The gate stays open for the
    present one, and describes it."""
    claims.save(replace(CLAIM, devices=(replace(MASTER, ips=(), mac=""),)))
    new = make_pod()
    host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    host.ok("ADD", new, conf(host), CNI_ARGS=ARGS)
    if not is_readable:
        durable.write(folder / f"{UID}.json", {**CLAIM.to_json(), "ofAnotherVersion": 1})
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)
    (shown,) = gate(folder)["requests"][0]["devices"]
    assert shown["networkData"]["ips"][0] in new.addresses()
    host.ok("DEL", new, conf(host), CNI_ARGS=ARGS)
    assert list((folder / f"{UID}.d").iterdir()) == []


def test_a_closed_gate_fails_check(host: Host, pod: Pod, folder: Path) -> None:
    claims.save(CLAIM)
    result = host.ok("ADD", pod, conf(host), CNI_ARGS=ARGS)
    (folder / f"{UID}.d/0").unlink()
    reply = host.checked(pod, conf(host), result, CNI_ARGS=ARGS)
    assert reply.code == 107
    assert "the gate of claim default/a-rails-x7f2k, request rails, is closed" in reply.stdout
    claims.forget(UID)
    assert host.checked(pod, conf(host), result, CNI_ARGS=ARGS).code == 0
    host.ok("DEL", pod, conf(host), CNI_ARGS=ARGS)


def test_a_node_without_claims(
    host: Host, pod: Pod, monkeypatch: pytest.MonkeyPatch, make_pod: Callable[[], Pod]
) -> None:
    """Nothing looks for a claim, whether or not the runtime chose a device."""
    monkeypatch.setattr(claimed, "find", None)
    for one, given in ((pod, host.conf()), (make_pod(), host.conf(deviceID="rail0-3"))):
        host.ok("ADD", one, given, CNI_ARGS=ARGS)
        host.ok("DEL", one, given)
