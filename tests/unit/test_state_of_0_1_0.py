"""The state that 0.1.0 writes, in tests/unit/state-0.1.0: every version reads it, and 0.1.0 reads every version's.

Whoever changes what is written sees here what an upgrade and a rollback with living pods would meet: write what 0.1.0
does not know only where it is used (base/state/record.py, _RARE), or give the file another schema.
"""

import json
import shutil
from pathlib import Path

import pytest
from support.installed import UNITS, program, tree

from base.protocol.result import Ip
from base.protocol.spec import Key
from base.state import journal
from base.state.record import Record
from ctl.installation import state
from ctl.installation.command import install
from ipam.stores import Sandbox, access
from ipam.stores.holdings import Kept, Lease

WRITTEN = Path(__file__).with_name("state-0.1.0")
RECORDS = sorted((WRITTEN / "run" / "hpn").rglob("*.json"))
LEASES = WRITTEN / "var" / "lib" / "cni" / "hpn" / "ipam" / "rail0" / "leases"


def test_it_is_no_obstacle_to_an_install(root: Path, tmp_path: Path) -> None:
    shutil.copytree(WRITTEN, root, dirs_exist_ok=True)
    before = tree(root)
    install(root, program(tmp_path), UNITS, "")
    assert before.items() <= tree(root).items()
    assert list(state.unknown(root)) == []


def test_its_records_are_read() -> None:
    found = {record.key.container_id: record for record in journal.records(WRITTEN / "run" / "hpn")}
    assert len(RECORDS) == 2
    assert found["c0ffee"].link["master"] == "rail0"
    assert found["c0ffee"].complete
    assert found["0123456789abcdef"].link["device"] == "0000:3b:10.1"
    assert [gid["index"] for gid in found["0123456789abcdef"].gids] == [2, 3, 7]


def test_its_leases_are_read() -> None:
    contents = access.open_in(LEASES.parents[1], "rail0", []).contents()
    assert (contents.problem, contents.unreadable) == ("", ())
    first, long, kept = (one.holding for one in contents.listed)
    assert isinstance(first, Lease)
    assert (first.owner.key, first.owner.sandbox) == (Key("c0ffee", "hpn0"), Sandbox(1, 1, 1, 1))
    assert [str(ip) for ip in first.ips] == ["10.56.0.2", "fd00:56::2"]
    assert isinstance(long, Lease)
    assert len(long.ips) == 38
    assert isinstance(kept, Kept)
    assert (kept.sticky, [str(ip) for ip in kept.ips]) == ("web-0", ["10.56.0.9"])


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_it_would_read_what_this_version_records(path: Path) -> None:
    """A member that it does not know makes a record one that it cannot read."""
    document = json.loads(path.read_text())
    again = Record.from_json(document["body"]).to_json()
    assert again.keys() == document["body"].keys()
    assert document["schema"] == 1


def test_it_would_read_what_this_version_leases(tmp_path: Path) -> None:
    store = access.open_in(tmp_path, "rail0", [])
    lease = next(one.holding for one in access.open_in(LEASES.parents[1], "rail0", []).contents().listed)
    assert isinstance(lease, Lease)
    store.reserve(lease.owner, lambda _: tuple(Ip(address) for address in lease.addresses))
    lines = [json.loads(line) for line in (tmp_path / "rail0" / "leases").read_text().splitlines() if line.strip()]
    theirs = [json.loads(line) for line in LEASES.read_text().splitlines()]
    assert lines[0].keys() == theirs[0].keys()
    assert lines[0]["schema"] == theirs[0]["schema"]
    assert lines[1].keys() == theirs[1].keys()
