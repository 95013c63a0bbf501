"""Prepare's question about a claim's devices: is one of them, or a relative of it, another pod's?"""

import asyncio
import os
import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import pci
from unit.node.dra.claims.test_prepare import POD, UID

from base.kernel import netns, sysfs
from base.protocol.errors import IoFailure, RecordUnreadable, TryAgain
from base.protocol.spec import Key
from base.state import claims, journal, owned
from base.state.claims import Claim, ClaimedDevice
from base.state.locks import Mode
from base.state.pod import Identity
from base.state.record import Record
from node.dra.claims import choice
from node.dra.claims.parameters import Refused

OTHER = UID.replace("0d", "1d")
SF = "mlx5_core.sf.4"
ALONE, SHARED = {"vf": pci.VF, "another VF": pci.ANOTHER, "pf": pci.PF, "sf": SF}, {"share": pci.PF, "master": "rail0"}
KINDS = {"vf": "vf", "another VF": "vf", "pf": "pf", "sf": "sf", "share": "shared", "master": "master"}
# Those that one pod cannot have beside another pod's: the same device, and a whole beside a part.
APART = {
    *(frozenset({one}) for one in ALONE),
    *(frozenset({"pf", other}) for other in KINDS),
}


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claims, "FOLDER", f"{tmp_path}/claims")
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    root = tmp_path / "sys"
    pci.function(root, pci.PF, netdev="rail0")
    for number, vf in enumerate((pci.VF, pci.ANOTHER)):
        pci.function(root, vf, pf=pci.PF)
        (root / "bus/pci/devices" / pci.PF / f"virtfn{number}").symlink_to(f"../{vf}")
    (root / "bus/pci/devices" / pci.PF / SF).mkdir()
    (root / "bus/auxiliary/devices").mkdir(parents=True)
    (root / "bus/auxiliary/devices" / SF).symlink_to(f"../../pci/devices/{pci.PF}/{SF}")
    pci.is_sys(root, monkeypatch)
    return root


def claim(name: str, uid: str = UID, **members: Any) -> Claim:
    address = {**ALONE, **SHARED}[name]
    share = "" if name in ALONE else uid
    device = ClaimedDevice("r", "n/p", name, share, address, KINDS[name], "example.com/r", "multus")
    return Claim(uid, "default", f"c-{uid[:2]}", (POD,), (replace(device, **members),))


def attach(tmp_path: Path, device: str = "", *, of: str = "", is_dead: bool = False, **link: Any) -> None:
    """An attachment, of a pod that may live, with a device, of the claim ``of``."""
    identity = Identity(1, 2)
    if is_dead:
        fd = os.open("/proc/self/ns/net", os.O_RDONLY)
        identity = Identity(1, 2, *netns.view("/proc/self/ns/net", fd))
        os.close(fd)
    if device:
        link |= {"device": device, "incarnation": sysfs.incarnation(device), "netdev": ""}
    key = Key("x", "hpn0")
    record = Record("net", key, "/run/netns/x", identity, kind="sriov", link=link, config={}, claim=of and f"{of}/0")
    with journal.lock(tmp_path / "state", record.network, record.key) as entry:
        entry.save(replace(record, pod="default/x"))


def refused(one: Claim) -> str:
    try:
        choice.refuse_taken(one, one.devices)
    except Refused as e:
        return str(e)
    return ""


@pytest.mark.parametrize("held", KINDS)
@pytest.mark.parametrize("asked", KINDS)
def test_beside_another_claim(asked: str, held: str) -> None:
    claims.save(claim(held, OTHER))
    why = refused(claim(asked))
    assert bool(why) == (frozenset({asked, held}) in APART), why
    assert not why or why.startswith(f"device {({**ALONE, **SHARED})[asked]} (n/p/{asked}): Kubernetes allocated '")
    assert not why or "to claim default/c-1d; delete one of the two pods, and its successor" in why


@pytest.mark.parametrize("held", ALONE)
@pytest.mark.parametrize("asked", KINDS)
def test_beside_an_attachment(tmp_path: Path, asked: str, held: str) -> None:
    """It has the device by another claim, or without one: by a configuration, or from the device plugin."""
    attach(tmp_path, ALONE[held])
    why = refused(claim(asked))
    assert bool(why) == (frozenset({asked, held}) in APART), why
    assert not why or "belongs to hpn0 of default/x, container x, network net, since" in why
    attach(tmp_path, ALONE[held], of=UID)
    assert not refused(claim(asked))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees all processes")
def test_an_attachment_of_a_dead_pod(tmp_path: Path) -> None:
    """The ADD of the claim's pod undoes it."""
    for is_dead in (False, True):
        attach(tmp_path, pci.VF, is_dead=is_dead)
        assert bool(refused(claim("vf"))) != is_dead


@pytest.mark.parametrize("of", ["", OTHER, UID])
def test_an_attachment_over_the_device(tmp_path: Path, tree: Path, of: str) -> None:
    """A pod's macvlan over a PF keeps a claim from having that alone, whoever has the PF's VFs.  Any interface serves
    as the PF's: each machine has lo, whose number is 1."""
    (tree / "bus/pci/devices" / pci.PF / "net/lo").mkdir()
    attach(tmp_path, of=of, parent=1)
    assert ("'lo' is the master of hpn0 of default/x" in refused(claim("pf"))) == (of != UID)
    for name in KINDS.keys() - {"pf"}:
        assert not refused(claim(name))


def test_observing(tmp_path: Path) -> None:
    """adminAccess shares any device."""
    claims.save(claim("vf", OTHER))
    assert not refused(claim("vf", admin=True))
    claims.save(claim("vf", OTHER, admin=True))
    assert not refused(claim("vf"))


def test_an_ended_claim(tmp_path: Path) -> None:
    """It has its devices until its attachments have ended."""
    claims.save(replace(claim("vf", OTHER), ended=True))
    assert not refused(claim("vf"))
    attach(tmp_path, of=OTHER)
    assert "has ended, and its pod is not detached yet; if that stays, run hpn gc" in refused(claim("vf"))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A record, and a claim that names the device."""
    attach(tmp_path, pci.VF)
    (record,) = (tmp_path / "state/attachments/net").iterdir()
    limit = os.open("/", os.O_RDONLY)  # the lowest free number
    os.close(limit)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    claims.save(claim("pf", OTHER))
    for one in (claim("vf"), claim("share")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            with pytest.raises((IoFailure, OSError)):
                choice.refuse_taken(one, one.devices)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    file = Path(claims.FOLDER) / f"{OTHER}.json"
    file.write_text(file.read_text()[:-9])
    with pytest.raises(RecordUnreadable):
        choice.refuse_taken(claim("vf"), claim("vf").devices)
    assert record.exists()


def test_an_add_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """hpn node answers others meanwhile, and kubelet's next call comes later."""
    answered = list[str]()

    async def prepare(name: str) -> None:
        async with choice.alone(claim(name).devices):
            answered.append(name)

    async def others() -> None:
        while not waiting.done():
            answered.append("other")
            # time: the pace of a loop that ends by an event
            await asyncio.sleep(0.01)

    async def both(name: str) -> None:
        nonlocal waiting
        waiting = asyncio.ensure_future(prepare(name))
        await asyncio.gather(waiting, others())

    waiting: asyncio.Future[None]
    monkeypatch.setattr(choice, "_LONGEST", 0.2)
    for name in KINDS:
        answered.clear()
        with owned.lock(pci.VF), pytest.raises(Refused, match=r"a pod's ADD has chosen .* kubelet tries again"):
            asyncio.run(both(name))
        assert {*answered} == {"other"}
        asyncio.run(both(name))
        assert name in answered


def test_masters_do_not_wait_for_each_other() -> None:
    async def prepare(name: str) -> None:
        async with choice.alone(claim(name).devices):
            pass

    with owned.lock("rail0", mode=Mode.SHARED), owned.lock(pci.PF, mode=Mode.SHARED):
        for name in SHARED:
            asyncio.run(prepare(name))


def test_adds_over_a_master_keep_no_claim_out() -> None:
    """Each ADD begins before the one before ends."""

    async def prepare() -> None:
        async with choice.alone(claim("vf").devices):
            pass

    async def both() -> None:
        before, waiting = owned.lock(pci.PF, 0, Mode.SHARED), asyncio.ensure_future(prepare())
        try:
            while not waiting.done():
                # time: the pace of a loop that ends by an event
                await asyncio.sleep(0.001)
                with suppress(TryAgain):
                    now = owned.lock(pci.PF, 0, Mode.SHARED)
                    before.release()
                    before = now
                    continue
                break
        finally:
            before.release()
        await waiting

    asyncio.run(both())
    with owned.lock(pci.PF, 0, Mode.SHARED):
        owned.lock(pci.PF, 0, Mode.SHARED).release()
