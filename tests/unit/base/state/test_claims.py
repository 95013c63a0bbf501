"""The prepared claims on disk: whole or absent, of this boot, and never outside their folder."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from unit.base.state.test_owned import decoded

from base.protocol.errors import InvalidConfig, IoFailure, RecordUnreadable, TryAgain
from base.state import claims, durable, gates, journal
from base.state.claims import Claim, ClaimedDevice

UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
OTHER = "1d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
POD = "a1b2c3d4-0000-4000-8000-000000000001"
VF = ClaimedDevice(
    request="rails/first",
    pool="node1/pci-0000-3b-00-0",
    device="0000-3b-00-2",
    share="",
    id="0000:3b:00.2",
    kind="vf",
    resource="example.com/rail0",
    attach="chain",
    interface="net1",
    config={"type": "hpn", "mtu": 9000},
    ips=("10.0.0.7/24",),
    mac="02:00:00:00:00:07",
)
CLAIM = Claim(UID, "default", "rails", (POD,), (VF, replace(VF, id="eth1", kind="master", share="2", ips=())))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    return tmp_path / "claims"


def test_a_claim_is_read_as_it_was_saved(folder: Path) -> None:
    claims.save(CLAIM)
    assert claims.load(UID) == CLAIM
    assert claims.load(OTHER) is None
    assert [path.name for path in folder.iterdir()] == [f"{UID}.json"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_versions_without_limits_read_claims_without_them(folder: Path) -> None:
    """They refuse a claim with a member that they do not know."""
    for limit, is_there in (("", False), ("keep", True), (4096, True)):
        claims.save(claim := replace(CLAIM, devices=(replace(VF, memlock=limit),)))
        assert claims.load(UID) == claim
        assert (b'"memlock"' in (folder / f"{UID}.json").read_bytes()) is is_there


def test_without_a_folder_there_is_no_claim(folder: Path) -> None:
    for found in (claims.all_claims(), claims.of_pod(POD), claims.with_device(VF.id)):
        assert not found
    claims.forget(UID)
    assert not folder.exists()


def test_claims_of_a_pod_and_of_a_device() -> None:
    # This claim's text contains the pod's UID, but it is another pod's.
    named = replace(CLAIM, uid=OTHER, name="a", pods=(POD.replace("1", "2"), "x"), devices=(replace(VF, resource=POD),))
    for claim in (CLAIM, named):
        claims.save(claim)
    assert claims.all_claims() == [named, CLAIM]
    assert claims.of_pod(POD) == [CLAIM]
    assert claims.with_device("eth1") == [(CLAIM, 1)]
    assert claims.with_device(VF.id) == [(named, 0), (CLAIM, 0)]
    assert claims.with_device("eth") == []
    assert claims.allocated([VF.id], f"{OTHER}/0")[VF.id] == (CLAIM, VF)
    claims.save(replace(CLAIM, devices=(replace(VF, admin=True),)))
    assert claims.with_device(VF.id) == [(named, 0)]
    assert claims.allocated([VF.id], f"{OTHER}/0") == {}


def test_a_pod_that_came_later(tmp_path: Path) -> None:
    """kubelet has a claim prepared once, so only its own file has later pods; a template's claim has one pod."""
    later = POD.replace("1", "2")
    entry = {"ClaimUID": UID, "ClaimName": "rails", "Namespace": "default", "PodUIDs": {POD: {}, later: {}}}
    data = {"kind": "DRACheckpoint", "ClaimInfoStateList": [{"ClaimUID": OTHER, "PodUIDs": {"x": {}}}, entry]}
    file = tmp_path / "dra_manager_state"
    mine = replace(CLAIM, kubelet=f"{tmp_path}")
    for claim in (mine, replace(mine, uid=OTHER, name="others")):
        claims.save(claim)
    assert claims.of_pod(later) == []
    file.write_text(json.dumps({"Data": json.dumps(data), "Checksum": 1}))
    assert claims.of_pod(later) == [mine]
    assert claims.of_pod("") == claims.of_pod(later[:-1]) == []
    claims.save(replace(mine, pod_claim="rails"))
    assert claims.of_pod(later) == []
    claims.save(mine)
    # The first in the folder may be of an earlier boot.
    claims.save(replace(mine, uid=OTHER, boot="of before", kubelet="/nowhere"))
    assert claims.of_pod(later) == [mine]
    for text in (b"", b"[]", b'{"Data": "[]"}', b'{"Data": {}}', b"\xff"):
        file.write_bytes(text + later.encode())
        with pytest.raises(IoFailure, match="in a format that this version of hpn does not know"):
            claims.of_pod(later)
        assert claims.of_pod(POD) == [mine]
    file.unlink()
    file.mkdir()
    with pytest.raises(IoFailure, match="it is a directory"):
        claims.of_pod(later)


@pytest.mark.parametrize("pod_claim", ["", "rails"])
def test_pods_of_one_claim_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pod_claim: str) -> None:
    """Each ADD opens the gate, and none disturbs another.  A template's claim has one pod, with several sandboxes."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    claim = replace(CLAIM, pod_claim=pod_claim, devices=(replace(VF, attach="none"),))
    with ThreadPoolExecutor(8) as threads:
        opened = [threads.submit(gates.open_if_whole, claim, 0) for _ in range(400)]
    assert all(one.result() for one in opened)


def test_hpn_node_does_not_wait_for_a_stuck_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer no other pod meanwhile."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    with journal.locked(tmp_path / "state", "claim", UID), pytest.raises(TryAgain, match="for 1 s; try again"):
        gates.settle(CLAIM, 0)


def test_a_forgotten_claim_is_gone(folder: Path) -> None:
    claims.save(CLAIM)
    claims.forget(UID)
    assert claims.load(UID) is None
    assert list(folder.iterdir()) == []


def test_a_claim_of_an_earlier_boot_counts_as_none() -> None:
    claims.save(replace(CLAIM, boot="of before"))
    assert claims.load(UID) is None
    assert claims.all_claims() == []


@pytest.mark.parametrize("uid", ["", "..", "../claims", f"{UID}/../x", UID.upper(), f"{UID}\n", f"{UID}.json"])
def test_only_a_uid_leads_to_a_file(folder: Path, uid: str) -> None:
    for call in (claims.load, claims.forget, lambda one: claims.save(replace(CLAIM, uid=one))):
        with pytest.raises(InvalidConfig, match="is not a UUID"):
            call(uid)
    with pytest.raises(InvalidConfig, match="is not a UUID"):
        claims.gate(uid, 0)
    assert not folder.exists()


def test_the_file_of_a_container_is_beside_the_claim(folder: Path) -> None:
    assert claims.gate(UID, 3) == f"{folder}/{UID}.d/3"


def test_damaged_claims_hide_no_other(folder: Path) -> None:
    claims.save(CLAIM)
    for uid, text in {
        OTHER: "{",
        OTHER.replace("1d", "2d"): (folder / f"{UID}.json").read_text(),
        OTHER.replace("1d", "3d"): json.dumps({"schema": 1, "sha256": "", "body": {}}),
    }.items():
        (folder / f"{uid}.json").write_text(text)
        with pytest.raises(RecordUnreadable):
            claims.load(uid)
    durable.write(folder / f"{OTHER}.json", {"uid": OTHER, "devices": []})
    with pytest.raises(RecordUnreadable, match="lacks members"):
        claims.load(OTHER)
    (folder / "stranger.json").write_text("{")
    (folder / f"{UID}.d").mkdir()
    assert claims.all_claims() == [CLAIM]


def deciding() -> dict[str, Callable[[], object]]:
    """What decides who may have a device, about the first claim's pod and device."""
    return {
        "of_pod": lambda: claims.of_pod(POD),
        "with_device": lambda: claims.with_device(VF.id),
        "allocated": lambda: claims.allocated([VF.id]),
        "prepared": lambda: claims.prepared(OTHER),
    }


@pytest.mark.parametrize("name", deciding())
def test_an_unreadable_claim_is_not_none(folder: Path, name: str) -> None:
    """A file that cannot be read may be that of any pod."""
    (folder / f"{UID}.json").mkdir(parents=True)
    with pytest.raises(RecordUnreadable, match="is not a regular file"):
        deciding()[name]()
    assert claims.all_claims() == []
    assert [*claims.listed()] == [(f"{folder / UID}.json", None)]


@pytest.mark.parametrize("name", deciding())
def test_a_damaged_claim_is_not_none(folder: Path, name: str) -> None:
    """It concerns those whom its text names."""
    claims.save(replace(CLAIM, uid=OTHER, pods=("another",), devices=(replace(VF, id="eth7"),)))
    claims.save(CLAIM)
    file = folder / f"{UID}.json"
    file.write_text(file.read_text()[:-3])
    with pytest.raises(RecordUnreadable):
        deciding()[name]()
    assert [one.id for claim, _ in claims.with_device("eth7") for one in claim.devices] == ["eth7"]
    assert [one.uid for one in claims.of_pod("another")] == [OTHER]
    assert claims.prepared(UID) == claims.all_claims()


def test_unchanged_ones_are_decoded_once() -> None:
    """hpn node compares each new claim with all others, and a node has a claim for each pod."""
    for number in range(60):
        claims.save(replace(CLAIM, uid=f"{UID[:-4]}{number:04x}"))
    assert (len(claims.prepared()), decoded(claims.prepared), decoded(claims.all_claims)) == (60, 0, 0)
    claims.save(replace(CLAIM, name="another"))
    assert decoded(claims.prepared) == 1
