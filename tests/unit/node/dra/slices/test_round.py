"""One round over the slices: nothing changes without kubelet's list; the API server's features and refusals."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.doctor_cases import offering
from support.dra_api import DraApi
from support.pod_resources import listing
from support.tls_server import Server, Told, api_server

from hardware.model import Device, Kind
from node.dra.slices.round import publish
from node.dra.slices.view import Report, View
from node.model import Offer, Resource, Sharing, Unit

VF = Resource("example.com", "vf", Sharing.EXCLUSIVE, (), kind="vf", by_dra=True)
MASTER = Resource("example.com", "rail", Sharing.SHARED, (), count=3, kind="master", by_dra=True)
VFS = tuple(Device(f"0000:3b:00.{n}", Kind.VF, pf="0000:3b:00.0") for n in (2, 3))
PF = (Device("0000:3b:00.0", Kind.PF, names=("rail0",), pf="0000:3b:00.0"),)
ALONE = Offer(VF, tuple(Unit(one.id, (one,)) for one in VFS))
SHARED = Offer(MASTER, tuple(Unit(f"{PF[0].id}-{n}", PF) for n in range(3)))
NOTHING = Told(200, {"metadata": {}, "items": []})
NODE = Told(200, {"metadata": {"uid": "n-1"}})
DONE = Told(200, {"metadata": {"name": "a", "uid": "u-1", "resourceVersion": "1"}})
HERE = os.uname().nodename.lower()


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Server, View]]:
    with api_server(tmp_path) as (server, kubeconfig):
        yield server, View(tmp_path, f"{kubeconfig}", (ALONE,))
    signal.alarm(0)  # a round ends its process


def sent(server: Server) -> list[tuple[str, str]]:
    return [(one.method, one.path.partition("?")[0].rpartition("/")[2]) for one in server.asked]


def test_without_kubelets_list(asked: tuple[Server, View], tmp_path: Path) -> None:
    """A device in a slice could be a pod's.  Only without offers is nothing to be asked."""
    server, view = asked
    report = publish(view)
    assert report.withheld is None
    assert "kubelet lists no pods' devices at" in report.problem
    assert server.asked == []
    with listing(tmp_path):
        (tmp_path / "pods").rmdir()
        report = publish(view)
    assert (report.withheld, "cannot be read" in report.problem, server.asked) == (None, True, [])
    server.tell(NOTHING)
    assert publish(replace(view, offers=())).problem == ""
    assert sent(server) == [("GET", "resourceslices")]


def test_publish(asked: tuple[Server, View], tmp_path: Path) -> None:
    server, view = asked
    with listing(tmp_path) as kubelet:
        kubelet.devices = {"example.com/vf": [VFS[0].id]}
        server.tell(NODE, NOTHING, DONE)
        report = publish(view)
        held = frozenset({("example.com/vf", VFS[0].id)})
        assert (report.withheld, report.problem) == (held, "")
        assert [method for method, _ in sent(server)] == ["GET", "GET", "POST"]
        (device,) = server.asked[2].body["spec"]["devices"]
        assert device["name"] == "0000-3b-00-3"
        # A look asks the API server only if a pod has ended.
        assert publish(replace(view, is_look=True, withheld=held)) == Report(held, is_look=True)
        assert len(server.asked) == 3
        kubelet.devices = {}
        server.tell(NODE, NOTHING, DONE)
        assert publish(replace(view, is_look=True, withheld=held)).withheld == frozenset()
        assert len(server.asked[-1].body["spec"]["devices"]) == 2


@pytest.mark.parametrize(
    ("dropped", "published", "words"),
    [
        ((), 2, ""),
        (("allowMultipleAllocations",), 0, "DRAConsumableCapacity"),
        (("capacity",), 0, "DRAConsumableCapacity"),
        (("taints",), 2, ""),
        (("consumesCounters",), 2, ""),
    ],
)
def test_features(
    asked: tuple[Server, View], tmp_path: Path, dropped: tuple[str, ...], published: int, words: str
) -> None:
    """The API server is asked by a dry run, and what it drops is not relied on."""
    server, view = asked
    two = Offer(MASTER, (*SHARED.units, Unit("0000:5e:00.0-0", (Device("0000:5e:00.0", Kind.PF, pf="0000:5e:00.0"),))))
    with listing(tmp_path):
        server.tell(NODE, NOTHING)
        publish(replace(view, offers=(two,)))  # the next answer is none that an API server gives
        probe = server.asked[2]
        assert "dryRun=All" in probe.path
        (device,) = probe.body["spec"]["devices"]
        stored = {key: value for key, value in device.items() if key not in dropped}
        server.asked.clear()
        server.tell(NODE, NOTHING, Told(201, {"metadata": {}, "spec": {"devices": [stored]}}), DONE, DONE)
        report = publish(replace(view, offers=(two,)))
        server.forget()
    assert report.problem == ""
    assert words in " ".join(report.notes)
    assert bool(report.notes) is bool(words)
    assert [method for method, _ in sent(server)] == ["GET", "GET", "POST", *["POST"] * published]


def test_a_resource_that_is_still_allocatable(asked: tuple[Server, View], tmp_path: Path) -> None:
    """The scheduler goes by the node's object; another plugin may offer the resource too."""
    server, view = asked
    for amount, published in (("2", 0), ("0", 1)):
        status = {"allocatable": {"cpu": "8", "example.com/vf": amount, "example.com/other": "1"}}
        server.tell(Told(200, {"metadata": {"uid": "n-1"}, "status": status}), NOTHING, DONE)
        server.asked.clear()
        with listing(tmp_path):
            report = publish(view)
        server.forget()
        assert report.problem == ""
        assert len(report.withheld or ()) == 2 * (not published)
        assert [method for method, _ in sent(server)] == ["GET", "GET", *["POST"] * published]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([NODE, Told(403, {"message": "no"})], "refuses to list resourceslices: no; allow it to the nodes: kubectl"),
        ([NODE, *[Told(503)] * 4], "gives no answer to GET /apis/resource.k8s.io/v1/resourceslices"),
        ([NODE, NOTHING, Told(409, {"reason": "AlreadyExists"})],
         "another program made or changed .*; if this stays: kubectl delete resourceslice .*-pci-0000-3b-00-0-0"),
        ([NODE, NOTHING, Told(422, {"message": "spec: Invalid"})], "refuses to create resourceslices: spec: Invalid"),
    ],
)  # fmt: skip
def test_refusals(asked: tuple[Server, View], tmp_path: Path, answers: list[Told], words: str) -> None:
    """The ledger's part of the round stands."""
    server, view = asked
    with listing(tmp_path) as kubelet:
        kubelet.devices = {"example.com/vf": [VFS[0].id]}
        server.tell(*answers)
        report = publish(view)
    assert report.withheld == {("example.com/vf", VFS[0].id)}
    assert re.search(words, report.problem)


def pfs(*addresses: str) -> Offer:
    """Two VFs of each PF."""
    found = [Device(f"{pf}.{n}", Kind.VF, vendor="15b3", pf=f"{pf}.0") for pf in addresses for n in (2, 3)]
    return Offer(VF, tuple(Unit(one.id, (one,)) for one in found))


def test_what_is_sent_again(asked: tuple[Server, View], tmp_path: Path) -> None:
    """Without a change: the node's object, and the slices' metadata.  Else also the slices of the pool that differs,
    if it does: by its devices, or because another program wrote, removed or added a slice."""
    server, view = asked
    made = DraApi()
    server.route = made.route
    view = replace(view, offers=(pfs("0000:3b:00", "0000:5e:00"),))

    def again(now: View) -> tuple[list[str], Report]:
        server.asked.clear()
        report = publish(now)
        assert report.problem == ""
        return [f"{method} {name[-2:]}" for method, name in sent(server)[2:]], report

    with listing(tmp_path):
        words, report = again(view)
        assert words == ["POST es", "POST es"]
        first, second = made.slices
        view = replace(view, known=report.known, withheld=report.withheld, is_same=True)
        assert again(view) == ([], report)
        assert "&resourceVersion=2&" in server.asked[1].path
        ten = {**report.known, second: ("10", b"")}
        publish(replace(view, known=ten))
        assert "&resourceVersion=10&" in server.asked[-2].path  # the second slice follows
        assert again(replace(view, is_same=False, leaves=True)) == ([], report)
        assert "resourceVersion" not in server.asked[1].path
        # A restart: nothing is known.
        assert again(replace(view, known={}, is_same=False)) == (["GET -0", "GET -0"], report)
        # Another program wrote without a change, and removed.
        made.slices[first]["metadata"]["resourceVersion"] = "new"
        words, report = again(view)
        assert words == ["GET -0"]
        assert report.known[first] == ("new", view.known[first][1])
        view = replace(view, known=report.known)
        del made.slices[second]
        words, report = again(view)
        assert words == ["POST es"]
        view = replace(view, known=report.known)
        other = second[:-1] + "7"
        made.slices[other] = {**made.slices[second], "metadata": {**made.slices[second]["metadata"], "name": other}}
        assert again(view) == (["GET -0", "GET -7", "DELETE -7"], report)
        # A pool's device, and a pool.
        sick = replace(view, unhealthy={(VF.full_name, "0000:5e:00.3"): "gone"}, is_same=False)
        words, report = again(sick)
        assert words == ["POST es", "GET -0", "PUT -0"]  # first whether it stores taints
        view = replace(sick, known=report.known, is_same=True)
        words, report = again(replace(view, offers=(pfs("0000:3b:00"),), is_same=False))
        assert "DELETE -0" in words
        assert [*report.known] == [*made.slices] == [first]


def test_a_restart_replaces_what_differs(asked: tuple[Server, View], tmp_path: Path) -> None:
    """Nothing is known of the slices, and one has other devices than the node."""
    server, view = asked
    made = DraApi()
    server.route = made.route
    with listing(tmp_path):
        publish(view)
        (name,) = made.slices
        made.slices[name]["spec"]["devices"].pop()
        server.asked.clear()
        report = publish(view)
    assert [method for method, _ in sent(server)] == ["GET", "GET", "GET", "PUT"]
    assert len(made.slices[name]["spec"]["devices"]) == 2
    assert report.known[name][0] == made.slices[name]["metadata"]["resourceVersion"]


def test_without_a_credential(asked: tuple[Server, View], tmp_path: Path) -> None:
    _, view = asked
    with listing(tmp_path):
        report = publish(replace(view, kubeconfig="/nowhere"))
    assert report.withheld == frozenset()
    assert "there is no kubeconfig at /nowhere" in report.problem
    assert report.is_barred


def test_whether_another_round_is_in_vain(asked: tuple[Server, View]) -> None:
    server, view = asked
    view = replace(view, offers=())
    server.tell(NOTHING, Told(403, {"message": "no"}), *[Told(cut=0)] * 9)
    reports = [publish(view) for _ in range(3)]
    assert [(bool(one.problem), one.is_barred) for one in reports] == [(False, False), (True, True), (True, False)]


def test_another_driver_with_the_name(asked: tuple[Server, View], tmp_path: Path) -> None:
    """kubelet gives claims to the driver that registered last, so no slice changes."""
    server, view = asked
    (tmp_path / "plugins_registry").mkdir()
    other = tmp_path / "plugins_registry/other.sock"
    with listing(tmp_path), offering(other, "hpn-cni.io"):
        report = publish(view)
    assert report.problem.startswith(f"{other} is another driver with the name hpn-cni.io")
    assert (report.withheld, server.asked) == (frozenset(), [])


def test_slices_of_another_program(asked: tuple[Server, View], tmp_path: Path) -> None:
    """They stay, in a pool of their own or in ours, and the node's own slices are as wanted."""
    server, view = asked
    made = [
        {
            "metadata": {"name": name, "uid": "u", "resourceVersion": "1", "managedFields": fields},
            "spec": {"driver": "hpn-cni.io", "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}},
        }
        for name, pool, fields in (
            (f"{HERE}-hpn-cni.io-x7f2k", HERE, [{"manager": "other"}, {"manager": "kubectl"}]),
            ("stranger", f"{HERE}/pci-0000-3b-00-0", []),
        )
    ]
    server.tell(NODE, Told(200, {"metadata": {}, "items": made}), DONE)
    with listing(tmp_path):
        report = publish(view)
    assert sent(server) == [("GET", HERE), ("GET", "resourceslices"), ("POST", "resourceslices")]
    assert server.asked[2].body["spec"]["pool"]["name"] == f"{HERE}/pci-0000-3b-00-0"
    assert (report.problem, report.node) == ("", HERE)
    (sentence,) = report.strangers
    assert f"leaves: {HERE}-hpn-cni.io-x7f2k (by kubectl, other), stranger (by an unknown program);" in sentence
    assert sentence.endswith(f"then: kubectl delete resourceslice {HERE}-hpn-cni.io-x7f2k stranger")


def test_a_refused_pool_stops_no_other(asked: tuple[Server, View], tmp_path: Path) -> None:
    server, view = asked
    other = Device("0000:5e:00.2", Kind.VF, pf="0000:5e:00.0")
    two = Offer(VF, (*ALONE.units, Unit(other.id, (other,))))
    name = f"{HERE}-hpn-cni.io-if-bond0-0"
    spec = {"driver": "hpn-cni.io", "pool": {"name": f"{HERE}/if-bond0", "generation": 1, "resourceSliceCount": 1}}
    old = {"metadata": {"name": name, "uid": "u", "resourceVersion": "1", "managedFields": []}, "spec": spec}
    server.tell(NODE, Told(200, {"metadata": {}, "items": [old]}), Told(422, {"message": "bad"}), DONE, DONE)
    with listing(tmp_path):
        report = publish(replace(view, offers=(two,)))
    assert "refuses to create resourceslices: bad" in report.problem
    assert [method for method, _ in sent(server)] == ["GET", "GET", "POST", "POST", "DELETE"]
