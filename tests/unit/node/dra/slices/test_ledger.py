"""Which way has a device: what pods have from the plugin stays out of slices, and the other way round."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support import pci
from support.pod_resources import CHECKPOINT, entry, keep, listing

from base.protocol.errors import TryAgain
from base.state import claims
from base.state.claims import Claim
from hardware.model import Device, Kind
from node.dra.service import Service
from node.dra.slices import ledger
from node.dra.slices.ledger import Holds
from node.kubelet import allocations
from node.log import Topics
from node.model import Offer, Resource, Sharing, Unit, devices_of

VF = Resource("example.com", "vf", Sharing.EXCLUSIVE, (), kind="vf", by_dra=True)
MASTER = Resource("example.com", "rail", Sharing.SHARED, (), count=3, kind="master", by_dra=True)
VFS = tuple(Device(f"0000:3b:00.{n}", Kind.VF, pf="0000:3b:00.0") for n in (2, 3))
VF_IDS = [one.id for one in VFS]
PF = Device("0000:3b:00.0", Kind.PF, names=("rail0",), pf="0000:3b:00.0")
OFFERED = Offer(VF, tuple(Unit(one.id, (one,)) for one in VFS))
ALONE = (PF,)
SHARED = Offer(MASTER, tuple(Unit(f"{PF.id}-{n}", ALONE) for n in range(3)))
UID = "6a2f41a3-c54c-fce8-32d2-0324e1c32e22"


def held(*units: tuple[str, str], devices: Sequence[str] = ()) -> Holds:
    return Holds(frozenset(units), frozenset(devices))


def withheld(found: Holds, *allocated: tuple[str, str]) -> set[str]:
    return {one for _, one in ledger.withheld([OFFERED, SHARED], found, allocated)}


@pytest.mark.parametrize(
    ("found", "ids"),
    [
        (held(), set()),
        (held(("example.com/vf", "0000:3b:00.2")), {"0000:3b:00.2"}),
        # Another name of the resource, or another plugin: the device is the same.
        (held(("old.com/vf", "0000:3b:00.2")), {"0000:3b:00.2"}),
        (held(("example.com/rail", "0000:3b:00.0-1")), {"0000:3b:00.0-1"}),
        (held(("old.com/hca", "0000:3b:00.0-1")), {f"0000:3b:00.0-{n}" for n in range(3)}),
        # Whoever has the PF alone has its VFs too.
        (held(("old.com/pf", "0000:3b:00.0")), {*VF_IDS, *(f"0000:3b:00.0-{n}" for n in range(3))}),
        (held(("old.com/hca", "0000:3b:00.2-17")), {"0000:3b:00.2"}),
        # An ADD without a resource: a NetworkAttachmentDefinition may name the device.
        (held(devices=["0000:3b:00.3"]), {"0000:3b:00.3"}),
        (held(devices=["0000:3b:00.0"]), {*VF_IDS}),
        (held(("nvidia.com/gpu", "GPU-1")), set()),
    ],
)
def test_withheld(found: Holds, ids: set[str]) -> None:
    assert withheld(found) == ids


def test_the_latest_allocations() -> None:
    """kubelet may not list an allocation yet."""
    now = 100.0
    noted = allocations.Allocations(lambda: now)
    noted.note("example.com/vf", ["0000:3b:00.2"])
    assert withheld(held(), *noted.units) == {"0000:3b:00.2"}
    now += allocations.LONGEST - 1
    noted.note("example.com/vf", ["0000:3b:00.3"])
    assert withheld(held(), *noted.units) == {"0000:3b:00.2", "0000:3b:00.3"}
    now += 2
    assert withheld(held(), *noted.units) == {"0000:3b:00.3"}


def unknown(folder: Path) -> str:
    """Why it is unknown what pods have from the plugin."""
    with pytest.raises(TryAgain) as raised:
        ledger.holds(folder)
    return raised.value.msg


def test_kubelets_answer(tmp_path: Path) -> None:
    assert "kubelet lists no pods' devices" in unknown(tmp_path)
    with listing(tmp_path) as kubelet:
        assert ledger.holds(tmp_path) == held()
        kubelet.devices = {"example.com/vf": ["0000:3b:00.2", "0000:3b:00.3"], "a.b/c": ["x"]}
        units = {("example.com/vf", "0000:3b:00.2"), ("example.com/vf", "0000:3b:00.3"), ("a.b/c", "x")}
        assert ledger.holds(tmp_path) == held(*units)
    assert "kubelet lists no pods' devices" in unknown(tmp_path)


def test_kubelets_checkpoint(tmp_path: Path) -> None:
    """A kubelet that has just started lists no pod; what its checkpoint has of ended pods does not count."""
    (tmp_path / "pods" / "there").mkdir(parents=True)
    with listing(tmp_path):
        keep(tmp_path, entry("there", "example.com/vf", *VF_IDS), entry("ended", "example.com/vf", "0000:3b:00.4"))
        assert ledger.holds(tmp_path) == held(*(("example.com/vf", one) for one in VF_IDS))
        (tmp_path / CHECKPOINT).write_text('{"Data": {"PodDeviceEntries": null}}')
        assert ledger.holds(tmp_path) == held()


@pytest.mark.parametrize("data", [b"", b"{}", b'{"Data": {"PodDeviceEntries": [{}]}}', b'{"Data": []}', b"\xff", b"[]"])
def test_a_checkpoint_of_another_format_clears_nothing(tmp_path: Path, data: bytes) -> None:
    with listing(tmp_path):
        (tmp_path / CHECKPOINT).write_bytes(data)
        assert "its format is unknown" in unknown(tmp_path)


@pytest.mark.parametrize("name", ["device-plugins", "pods"])
def test_what_a_container_lacks_clears_nothing(tmp_path: Path, name: str) -> None:
    """Without the pods' directories each entry would be one of an ended pod."""
    with listing(tmp_path):
        keep(tmp_path, entry("there", "example.com/vf", *VF_IDS))
        (tmp_path / name).rename(tmp_path / "elsewhere")
        assert f"in a container, mount {tmp_path}/device-plugins and {tmp_path}/pods" in unknown(tmp_path)


def test_an_unreadable_checkpoint_clears_nothing(tmp_path: Path) -> None:
    with listing(tmp_path):
        (tmp_path / CHECKPOINT).mkdir()
        assert "cannot be read" in unknown(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")


def prepared(*ids: str, kind: str = "vf") -> None:
    devices = tuple(
        claims.ClaimedDevice(f"r{n}", "node1/p", "d", "", one, kind, "example.com/vf", "multus")
        for n, one in enumerate(ids)
    )
    claims.save(Claim(UID, "default", "c", (), devices))


def left(offer: Offer, *published: str) -> list[str]:
    by_plugin = replace(offer, resource=replace(offer.resource, by_dra=False))
    (found,) = ledger.without_claimed([by_plugin], set(published))
    return [unit.id for unit in found.units]


@pytest.mark.usefixtures("folder")
def test_the_way_back() -> None:
    """The plugin offers no device of a prepared claim, and none that may be in a slice."""
    all_vfs, all_shares = [one.id for one in VFS], [unit.id for unit in SHARED.units]
    assert (left(OFFERED), left(SHARED)) == (all_vfs, all_shares)
    assert left(OFFERED, VFS[0].id) == all_vfs[1:]
    assert left(SHARED, PF.id) == []
    prepared(VFS[1].id, "rail0")
    assert left(OFFERED) == all_vfs[:1]
    assert left(SHARED) == all_shares[:2]
    prepared("rail0", "rail0", "rail0", "rail0")
    assert left(SHARED) == []
    claims.forget(UID)
    assert (left(OFFERED), left(SHARED)) == (all_vfs, all_shares)
    assert devices_of(SHARED.units) == (PF,)


@pytest.mark.usefixtures("folder")
def test_a_claim_of_a_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a PF alone has its VFs too, and whoever has a VF keeps others from having the PF alone."""
    for one in VFS:
        pci.function(tmp_path / "sys", one.id, pf=PF.id)
    pci.function(tmp_path / "sys", PF.id)
    pci.is_sys(tmp_path / "sys", monkeypatch)
    whole = Offer(replace(MASTER, sharing=Sharing.EXCLUSIVE, kind="pf"), (Unit(PF.id, ALONE),))
    prepared(VFS[1].id)
    assert (left(whole), left(SHARED)) == ([], [unit.id for unit in SHARED.units])
    prepared(PF.id, kind="pf")
    assert (left(whole), left(OFFERED)) == ([], [])
    prepared(PF.id, kind="shared")
    assert (left(whole), left(OFFERED)) == ([], [one.id for one in VFS])


@pytest.mark.usefixtures("folder")
def test_a_claim_that_cannot_be_read() -> None:
    """It may have any device, so the plugin offers no unit that it did not offer before."""
    prepared(VFS[1].id)
    loop = asyncio.new_event_loop()
    topics = Topics()
    service = Service(loop, topics, Path("/nowhere"), "", allocations.Allocations(), lambda: None)
    offer = replace(OFFERED, resource=replace(OFFERED.resource, by_dra=False))
    one_more = replace(offer, units=(*offer.units, Unit("0000:3b:00.4", (replace(VFS[0], id="0000:3b:00.4"),))))
    assert [unit.id for unit in service.without_claimed([offer])[0].units] == VF_IDS[:1]
    file = Path(claims.FOLDER) / f"{UID}.json"
    text = file.read_text()
    file.write_text("{")
    assert [unit.id for unit in service.without_claimed([one_more])[0].units] == VF_IDS[:1]
    assert topics.problems == {"claims"}
    file.write_text(text)
    assert [unit.id for unit in service.without_claimed([one_more])[0].units] == [VF_IDS[0], "0000:3b:00.4"]
    assert topics.problems == set()
    service.close()
    loop.close()
