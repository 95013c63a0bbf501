"""The DRA driver, called by grpcio and grpc-go as kubelet calls it, beside a real HTTPS server as the API server."""

import json
import os
import resource
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.dra_process import POOL, VF, DriverProcess
from support.go_kubelet import GoKubelet, go_kubelet
from support.node_dra import DraKubelet, dra_kubelet
from support.tls_server import Server, Told, api_server
from support.topology import until
from unit.node.dra.claims.test_prepare import POD, UID, claim, config, result

from base.kubelet import drahealth_pb2 as health
from base.protocol.spec import Key
from base.state import claims, durable, gates, journal
from base.state.pod import Identity
from base.state.record import Record
from node.dra import api
from node.dra.claims import deciding
from node.dra.claims.prepare import Asked, Found

OTHER, BAD = UID.replace("0d", "1d"), UID.replace("0d", "2d")
ASKED = ("default", "rails", UID)
CLIENTS = pytest.mark.parametrize("kubelet", ["grpcio", "grpcio older", "grpc-go", "grpc-go older"], indirect=True)
ABSENT = Told(404, {"kind": "Status", "reason": "NotFound", "message": "not found", "details": {"name": "rails"}})


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "api"
    folder.mkdir()
    with api_server(folder) as (one, _):
        yield one


@pytest.fixture
def driver(tmp_path: Path, server: Server) -> Iterator[DriverProcess]:
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig") as one:
        yield one
    assert not one.socket.exists()


@pytest.fixture
def kubelet(driver: DriverProcess, request: pytest.FixtureRequest) -> Iterator[DraKubelet | GoKubelet]:
    client, *older = getattr(request, "param", "grpcio").split()
    with go_kubelet("unit", driver.socket) if client == "grpc-go" else dra_kubelet(driver.socket) as one:
        one.version, one.health_version = ("v1beta1", "v1alpha1") if older else ("v1", "v1")
        yield one


def cdi(driver: DriverProcess, uid: str = UID) -> dict[str, Any]:
    return dict(json.loads((driver.cdi / f"hpn-claim-{uid}.json").read_text()))


def attach(tmp_path: Path, **members: Any) -> journal.Entry:
    """An attachment of the claim's first device in the journal."""
    record = Record("rail0", Key("c1", "net1"), "/run/netns/x", Identity(1, 2), kind="macvlan", link={}, config={})
    entry = journal.Entry(tmp_path / "state", record.network, record.key)
    body = {**record.to_json(), "complete": True, "claim": f"{UID}/0", **members}
    durable.write(entry.path, body)
    return entry


@pytest.mark.parametrize("kubelet", ["grpcio", "grpc-go"], indirect=True)
def test_info(driver: DriverProcess, kubelet: DraKubelet | GoKubelet) -> None:
    info = kubelet.info()
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "hpn-cni.io", str(driver.socket))
    assert [*info.supported_versions] == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]


def test_registration(driver: DriverProcess, kubelet: DraKubelet) -> None:
    kubelet.notify("name taken\nby another")
    kubelet.notify("name taken\nby another")
    kubelet.notify()
    until(lambda: any("has accepted" in line for line in driver.said))
    assert (
        sum("kubelet refuses the driver hpn-cni.io: name taken by another; no pod" in line for line in driver.said) == 1
    )


@CLIENTS
def test_prepare_and_unprepare(
    driver: DriverProcess, kubelet: DraKubelet | GoKubelet, server: Server, tmp_path: Path
) -> None:
    driver.has({"vf2": {**VF, "nodes": ["/dev/infiniband/uverbs4", "/dev/infiniband/rdma_cm"]}, "vf3": VF})
    document = claim(results=(result(shareID="s-1"), result("vf3", request="b/first")))
    document["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "rails-of-pod"}
    server.tell(Told(200, document))
    # Only v1 has that field: the generated client of v1beta1 drops it.
    share = "" if isinstance(kubelet, GoKubelet) and kubelet.version == "v1beta1" else "s-1"
    first, second = kubelet.prepare(ASKED)[UID].devices
    assert server.asked[-1].path == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/rails"
    assert (first.request_names, first.pool_name, first.device_name, first.cdi_device_ids, first.share_id) == (
        ["rails"],
        POOL,
        "vf2",
        [f"hpn.io/claim={UID}-0"],
        share,
    )
    assert (second.request_names, second.HasField("share_id")) == (["b"], False)
    kept = claims.load(UID)
    assert kept
    assert (kept.pods, [one.id for one in kept.devices]) == ((POD,), ["0000:3b:00.2"] * 2)
    assert kept.kubelet == f"{driver.socket.parent.parent}"
    metadata = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/rails-of-pod"
    mount = {
        "hostPath": f"{tmp_path}/claims/{UID}.d/0",
        "containerPath": f"{metadata}/rails/hpn-cni.io-metadata.json",
        "options": ["ro", "bind"],
    }
    nodes = [{"path": path, "permissions": "rw"} for path in ("/dev/infiniband/uverbs4", "/dev/infiniband/rdma_cm")]
    assert cdi(driver)["devices"][0] == {
        "name": f"{UID}-0",
        "containerEdits": {"mounts": [mount], "deviceNodes": nodes},
    }
    assert (driver.cdi / f"hpn-claim-{UID}.json").stat().st_mode & 0o777 == 0o644
    assert kubelet.unprepare(ASKED, ("default", "unknown", OTHER)) == {UID: "", OTHER: ""}
    assert [*driver.cdi.iterdir(), *driver.claims.iterdir()] == []


@CLIENTS
def test_prepare_again_makes_all_files_anew(
    driver: DriverProcess, kubelet: DraKubelet | GoKubelet, server: Server
) -> None:
    """The same answer as before, whatever is left: also after a reboot, which empties /run."""
    document = claim(config(attach="chain"))
    server.tell(*[Told(200, document)] * 3)
    before = kubelet.prepare(ASKED)[UID], cdi(driver), claims.load(UID)
    (driver.cdi / f"hpn-claim-{UID}.json").unlink()
    assert (kubelet.prepare(ASKED)[UID], cdi(driver), claims.load(UID)) == before
    claims.forget(UID)
    (driver.cdi / f"hpn-claim-{UID}.json").unlink()
    driver.cdi.rmdir()
    assert (kubelet.prepare(ASKED)[UID], cdi(driver), claims.load(UID)) == before


def test_prepare_again_after_the_device_left_the_slices(
    driver: DriverProcess, kubelet: DraKubelet, server: Server
) -> None:
    """Its resource went back to the device plugin, and kubelet has restarted."""
    server.tell(*[Told(200, claim())] * 4)
    vf = {**VF, "nodes": ["/dev/infiniband/uverbs4"]}
    driver.has({"vf2": vf})
    before = kubelet.prepare(ASKED)[UID], cdi(driver), claims.load(UID)
    for now in ({}, {"vf2": {**vf, "problem": "a pod has it from the device plugin"}}):
        driver.has(now)
        (driver.cdi / f"hpn-claim-{UID}.json").unlink()
        assert (kubelet.prepare(ASKED)[UID], cdi(driver), claims.load(UID)) == before
    assert kubelet.unprepare(ASKED) == {UID: ""}
    driver.has({})
    assert "is none of this node's devices now" in kubelet.prepare(ASKED)[UID].error


def test_a_gate_of_an_earlier_boot(driver: DriverProcess, kubelet: DraKubelet, server: Server, tmp_path: Path) -> None:
    """On a node with /run on a disk.  Prepare closes it, and not that of an attachment of this boot."""
    server.tell(*[Told(200, claim())] * 3)
    gate = Path(claims.gate(UID, 0))
    kubelet.prepare(ASKED)
    for is_attached in (False, True):
        kept = durable.read(driver.claims / f"{UID}.json")
        durable.write(driver.claims / f"{UID}.json", {**(kept or {}), "boot": "of before"})
        gate.write_text("of before")
        if is_attached:
            attach(tmp_path)
        assert not kubelet.prepare(ASKED)[UID].error
        assert gate.exists() == is_attached


def test_a_restart(tmp_path: Path, server: Server) -> None:
    """Claims are files, so another process gives up what the first one prepared."""
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig") as first, dra_kubelet(first.socket) as kubelet:
        server.tell(Told(200, claim()))
        assert not kubelet.prepare(ASKED)[UID].error
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig") as second, dra_kubelet(second.socket) as kubelet:
        assert cdi(second)
        assert kubelet.unprepare(ASKED) == {UID: ""}
        assert [*second.cdi.iterdir(), *second.claims.iterdir()] == []


def test_claims_of_earlier_boots(tmp_path: Path, server: Server) -> None:
    """On a node with /run on a disk they would stay: a start removes them, and nothing of this boot or unreadable."""
    other, damaged = claim(), tmp_path / f"claims/{UID.replace('0d', '2d')}.json"
    other["metadata"]["uid"] = OTHER
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig") as first, dra_kubelet(first.socket) as kubelet:
        first.has({"vf2": VF, "vf3": {**VF, "id": "0000:3b:00.3"}})
        other["status"]["allocation"]["devices"]["results"][0]["device"] = "vf3"
        server.tell(Told(200, claim(config(attach="none"))), Told(200, other))
        assert not any(one.error for one in kubelet.prepare(ASKED, ("default", "o", OTHER)).values())
    kept = durable.read(first.claims / f"{UID}.json")
    durable.write(first.claims / f"{UID}.json", {**(kept or {}), "boot": "of before"})
    damaged.write_text("{")
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig") as second:
        until(lambda: not (second.claims / f"{UID}.d").exists())
        assert {path.name for path in second.claims.iterdir()} >= {f"{OTHER}.json", damaged.name}
        assert not (second.claims / f"{UID}.json").exists()
        assert [path.name for path in second.cdi.iterdir()] == [f"hpn-claim-{OTHER}.json"]


@CLIENTS
def test_a_claim_for_each_answer(driver: DriverProcess, kubelet: DraKubelet | GoKubelet, server: Server) -> None:
    """A claim that is refused keeps none of the others back, and changes nothing."""
    # The API server keeps a claim's parameters as their author wrote them, also with half a surrogate pair.
    bad, other = claim(config(**{"größe\ud800": 1})), claim()
    bad["metadata"]["uid"], other["metadata"]["uid"] = BAD, OTHER
    server.tell(ABSENT, Told(200, bad), Told(200, other))
    answers = kubelet.prepare(ASKED, ("default", "bad", BAD), ("default", "other", OTHER))
    assert answers[BAD].error == "größe\\ud800 is an unknown key; remove größe\\ud800"
    assert answers[UID].error == "claim default/rails does not exist; a new pod gets a new claim"
    assert [one.device_name for one in answers[OTHER].devices] == ["vf2"]
    assert [path.name for path in driver.cdi.iterdir()] == [f"hpn-claim-{OTHER}.json"]
    until(lambda: any("claim default/rails: claim default/rails does not exist" in line for line in driver.said))


def test_a_device_for_two_claims(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    """As from a restored etcd: the second claim is refused, until the first has ended."""
    other = claim()
    other["metadata"]["uid"] = OTHER
    server.tell(Told(200, claim()), Told(200, other), Told(200, other))
    assert not kubelet.prepare(ASKED)[UID].error
    assert "allocated '0000:3b:00.2' to claim default/rails" in kubelet.prepare(("default", "o", OTHER))[OTHER].error
    assert kubelet.unprepare(ASKED) == {UID: ""}
    assert not kubelet.prepare(("default", "o", OTHER))[OTHER].error


def test_a_damaged_claim_beside(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    """It may have any device, so no claim is prepared beside it.  kubelet's event has the remedy, and that helps."""
    server.tell(Told(200, claim()), Told(200, claim()))
    driver.claims.mkdir(mode=0o700, exist_ok=True)
    (driver.claims / f"{OTHER}.json").write_text("{")
    error = kubelet.prepare(ASKED)[UID].error
    assert f"{OTHER}.json is not a state file of hpn" in error
    assert error.endswith("; delete the claim's pods")
    assert kubelet.unprepare(("default", "o", OTHER)) == {OTHER: ""}
    assert not kubelet.prepare(ASKED)[UID].error


def test_few_descriptors(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    """Each refusal names the shortage and leaves nothing, and the next call works."""
    server.route = lambda _: Told(200, claim())
    for _ in range(3):  # then it watches the claims
        assert not kubelet.prepare(ASKED)[UID].error
        assert kubelet.unprepare(ASKED) == {UID: ""}
    pid, refused = driver.process.pid, 0
    held = sorted(os.listdir(f"/proc/{pid}/fd"))
    free = next(number for number in count() if f"{number}" not in held)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    for number in range(32):
        driver.kill_helpers()  # the call starts another
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (free + number, before[1]))
        error = kubelet.prepare(ASKED)[UID].error
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert kubelet.unprepare(ASKED) == {UID: ""}
        assert [*driver.cdi.iterdir(), *driver.claims.iterdir()] == []
        assert len(os.listdir(f"/proc/{pid}/fd")) <= len(held)
        if not error:
            break
        refused += 1
        # The second is a failed import of the child; the frozen program has all modules in one open file.
        assert "oo many open files" in error or "the process that reads the claim ended with status 1" in error
    assert 1 < refused == number
    assert not kubelet.prepare(ASKED)[UID].error


def test_an_attachment_keeps_its_claim(
    driver: DriverProcess, kubelet: DraKubelet, server: Server, tmp_path: Path
) -> None:
    """Kubernetes 1.36 gives up the claim of a running pod.  Device, CDI file and state stay until its DEL."""
    other = claim()
    other["metadata"]["uid"] = OTHER
    server.tell(Told(200, claim()), Told(200, other), Told(200, other))
    kubelet.prepare(ASKED)
    entry = attach(tmp_path)
    assert kubelet.unprepare(ASKED) == {UID: ""}
    kept = claims.load(UID)
    assert kept
    assert kept.ended
    assert cdi(driver)
    assert "to claim default/rails; the claim has ended" in kubelet.prepare(("default", "o", OTHER))[OTHER].error
    entry.path.unlink()
    assert not kubelet.prepare(("default", "o", OTHER))[OTHER].error
    assert [path.name for path in driver.cdi.iterdir()] == [f"hpn-claim-{OTHER}.json"]
    assert claims.load(UID) is None


def test_an_ended_claim_that_is_prepared_again(
    driver: DriverProcess, kubelet: DraKubelet, server: Server, tmp_path: Path
) -> None:
    """The next sandbox of the pod whose claim Kubernetes 1.36 gave up."""
    server.tell(Told(200, claim()), Told(200, claim()))
    kubelet.prepare(ASKED)
    attach(tmp_path)
    kubelet.unprepare(ASKED)
    assert not kubelet.prepare(ASKED)[UID].error
    kept = claims.load(UID)
    assert kept
    assert not kept.ended


@pytest.mark.parametrize("is_of_later_version", [True, False])
def test_an_attachment_of_an_unreadable_claim(
    driver: DriverProcess, kubelet: DraKubelet, server: Server, tmp_path: Path, *, is_of_later_version: bool
) -> None:
    """Kubernetes gives it up once, and nothing of it stays after the attachment's end."""
    server.tell(Told(200, claim()))
    kubelet.prepare(ASKED)
    entry, file = attach(tmp_path), driver.claims / f"{UID}.json"
    if is_of_later_version:
        durable.write(file, {**(durable.read(file) or {}), "later": 1})
    else:
        file.write_text("{")
    assert kubelet.unprepare(ASKED) == {UID: ""}
    assert cdi(driver)
    entry.path.unlink()
    assert kubelet.unprepare(("default", "unknown", OTHER)) == {OTHER: ""}
    assert [*driver.cdi.iterdir(), *driver.claims.iterdir()] == []


def test_an_attachment_of_an_earlier_boot_keeps_nothing(
    driver: DriverProcess, kubelet: DraKubelet, server: Server, tmp_path: Path
) -> None:
    server.tell(Told(200, claim()))
    kubelet.prepare(ASKED)
    attach(tmp_path, boot="of before")
    kubelet.unprepare(ASKED)
    assert claims.load(UID) is None


def test_without_an_interface_the_gate_is_open(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    server.tell(Told(200, claim(config(attach="none"))))
    kubelet.prepare(ASKED)
    (line, _) = (driver.claims / f"{UID}.d/0").read_text().splitlines()
    (device,) = json.loads(line)["requests"][0]["devices"]
    assert device == {"driver": "hpn-cni.io", "pool": POOL, "name": "vf2", "attributes": VF["attributes"]}
    kubelet.unprepare(ASKED)
    assert [*driver.claims.iterdir()] == []


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Told(403, {"kind": "Status", "reason": "Forbidden", "message": "no"}), "allow it to the nodes"),
        (Told(401, {}), "does not know this node's credential"),
        (Told(500, {}), "gives no answer to GET"),
        (
            Told(200, {"metadata": {"uid": UID}, "status": {"allocation": {"devices": {"results": [1]}}}}),
            "is not as the",
        ),
        (Told(200, b"<html>"), "is not an API server"),
    ],
)
def test_an_api_server_that_refuses(kubelet: DraKubelet, server: Server, told: Told, words: str) -> None:
    server.tell(*[told] * 4)
    assert words in kubelet.prepare(ASKED)[UID].error


def test_a_silent_api_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided by then is answered before kubelet gives up, and each other claim has a sentence."""
    document, asked = claim(), [Asked(UID.replace("0d", f"{n}d"), "default", "abc"[n]) for n in range(3)]
    document["metadata"]["uid"] = asked[0].uid
    server.tell(Told(200, document), *[Told(is_silent=True)] * 4)
    # A clock that each look advances, so that the second claim is read in time.
    monkeypatch.setattr(deciding, "time", SimpleNamespace(monotonic=count().__next__))

    monkeypatch.setattr(api, "PATIENCE", 5.0)
    documents = deciding._read(f"{tmp_path}/api/kubeconfig", asked, latest=1)
    found, _ = deciding._decide(asked, documents, {(POOL, "vf2"): Found(**VF)})
    signal.alarm(0)  # it is for a child process
    first, second, third = (found[one.uid] for one in asked)
    assert isinstance(first, claims.Claim)
    assert f"{server.url} gives no answer to GET /apis/resource.k8s.io/v1/namespaces/default" in f"{second}"
    assert third == f"claim default/c was not read: {server.url} answers too slowly; kubelet tries again"


@pytest.mark.parametrize("uid", ["", "..", "../x", "x" * 300])
def test_a_uid_is_no_path(driver: DriverProcess, kubelet: DraKubelet, server: Server, uid: str) -> None:
    document = claim()
    document["metadata"]["uid"] = uid
    server.tell(Told(200, document))
    assert "is not a UUID in lower case" in kubelet.prepare(("default", "rails", uid))[uid].error
    assert "is not a UUID in lower case" in kubelet.unprepare(("default", "rails", uid))[uid]
    assert not driver.claims.exists()
    assert not driver.cdi.exists()


def test_a_place_that_cannot_be_written(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    """The answer names the file; the next try, after somebody made room, succeeds."""
    server.tell(Told(200, claim()), Told(200, claim()))
    driver.cdi.write_text("a file in the directory's place")
    error = kubelet.prepare(ASKED)[UID].error
    assert f"{driver.cdi}" in error
    assert "on this node" in error
    driver.cdi.unlink()
    assert not kubelet.prepare(ASKED)[UID].error
    assert cdi(driver)


def test_a_device_that_broke_meanwhile(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    server.tell(Told(200, claim()), Told(200, claim()))
    driver.has({"vf2": {**VF, "problem": "it has no link; plug in the cable"}})
    assert kubelet.prepare(ASKED)[UID].error == f"device 0000:3b:00.2 ({POOL}/vf2): it has no link; plug in the cable"
    driver.has({})
    assert "is none of this node's devices now" in kubelet.prepare(ASKED)[UID].error


@CLIENTS
def test_health(driver: DriverProcess, kubelet: DraKubelet | GoKubelet) -> None:
    stream = kubelet.health()
    (device,) = next(stream).devices
    assert (device.device.pool_name, device.device.device_name) == (POOL, "vf2")
    assert (device.health, device.message) == (health.HEALTHY, "")
    assert device.health_check_timeout_seconds > 86400
    driver.has({"vf2": {**VF, "problem": "no link " * 200}})
    (device,) = next(stream).devices
    assert (device.health, device.message) == (health.UNHEALTHY, ("no link " * 200)[:1024])
    stream.cancel()


def test_health_that_stays(driver: DriverProcess, kubelet: DraKubelet) -> None:
    """Most of a node's events concern no device of a slice: a pod's veth comes and goes."""
    stream = kubelet.health()
    next(stream)
    driver.has({"vf2": {**VF, "attributes": {}}})
    driver.has({"vf2": {**VF, "problem": "no link"}})
    (device,) = next(stream).devices
    assert device.health == health.UNHEALTHY
    stream.cancel()


def test_a_kubelet_that_hangs_up(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    """The process that reads the claim ends with the call, and the driver goes on."""
    server.tell(Told(is_silent=True), Told(200, claim()))
    call = kubelet.begin(ASKED)
    until(lambda: server.asked)
    assert driver.helpers()
    call.cancel()
    until(lambda: not driver.helpers())
    assert not kubelet.prepare(ASKED)[UID].error


def test_the_claims_status(driver: DriverProcess, kubelet: DraKubelet, server: Server, tmp_path: Path) -> None:
    """The driver writes it when ADD has opened the gate, and again if the API server refused."""
    server.tell(Told(200, claim(results=(result(shareID="s-1"), result("vf2", request="b")))))
    kubelet.prepare(ASKED)
    kept = claims.load(UID)
    assert kept
    shown = {"interfaces": [{"name": "net1", "mac": "02:00:00:00:00:07"}], "ips": [{"address": "10.0.0.7/24"}]}
    attach(tmp_path, result=shown)
    server.tell(Told(403, {"kind": "Status", "reason": "Forbidden", "message": "not yours"}))
    assert gates.open_if_whole(kept, 0)
    until(lambda: any("claims do not show the interfaces of their devices: " in line for line in driver.said))
    until(lambda: len([one for one in server.asked if one.method == "PATCH"]) == 2)
    first, again = [one for one in server.asked if one.method == "PATCH"]
    assert first.body == again.body
    assert again.path.startswith("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/rails/status?")
    assert again.body["metadata"] == {"name": "rails", "namespace": "default", "uid": UID}
    data = {"interfaceName": "net1", "ips": ["10.0.0.7/24"], "hardwareAddress": "02:00:00:00:00:07"}
    about = {"driver": "hpn-cni.io", "pool": POOL, "device": "vf2", "shareID": "s-1"}
    assert again.body["status"]["devices"] == [{**about, "networkData": data}]


def test_a_status_that_was_not_written_before_the_restart(tmp_path: Path, server: Server) -> None:
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig") as first, dra_kubelet(first.socket) as kubelet:
        server.tell(Told(200, claim()))
        kubelet.prepare(ASKED)
    attach(tmp_path)
    kept = claims.load(UID)
    assert kept
    gates.open_if_whole(kept, 0)
    with DriverProcess(tmp_path, tmp_path / "api/kubeconfig"):
        until(lambda: [one for one in server.asked if one.method == "PATCH"])


def test_claims_are_private(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    server.tell(Told(200, claim()))
    kubelet.prepare(ASKED)
    assert driver.claims.stat().st_mode & 0o777 == 0o700
    assert os.stat(driver.claims / f"{UID}.json").st_mode & 0o777 == 0o600
