"""The power is cut again and again while eight processes attach and detach.

No acknowledged lease is lost, no address has two owners, and no reserved address is free after its release.

One boot of the lab records every write of a disk under them (tests/guest/recording.py).  Here the record is cut at
random, and each sector under way at that moment is written or not.  e2fsck replays ext4's own journal.  Then the real
program reads the store, in another boot than the guest's.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import drawn
import pytest
from conftest import require
from guest.recording import SIZE, call, conf, cools, sticky
from support.dm_log import Cut, cuts, entries
from test_lab import TWO, lab

ROOT = Path(__file__).parents[1]
LAB = ROOT / "netns-fixtures" / "lab"
CUTS = 200
# For each writer.
OPERATIONS = 60


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "HPN_LAB" in os.environ:
        pytest.skip("is what boots the guest that this is")
    ready = subprocess.run([LAB, "--prepare"], capture_output=True, text=True, check=False)
    if ready.returncode:
        require("lab", ready.stderr.strip())
    out = tmp_path_factory.mktemp("recorded")
    path = ":".join(str(ROOT / folder) for folder in (".", "tests", "tests/harness"))
    inside = ["env", f"PYTHONPATH={path}", sys.executable, "-m", "guest.recording", str(OPERATIONS)]
    done = lab(*TWO, "--pfs", "0", "--out", out, *inside)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "log"


def restored(cut: Cut, scratch: Path) -> Path:
    """The store as the next boot finds it."""
    image, state = scratch / "disk", scratch / "state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    image.write_bytes(cut.disk)
    # Replay the journal, and repair nothing else: more repair would hide the errors that this test is for.
    e2fs("e2fsck", "-y", "-E", "journal_only", image)
    assert e2fs("e2fsck", "-fn", image) == 0, f"ext4 is not whole in {image}"
    e2fs("debugfs", "-R", f"rdump ipam {state}", image)
    assert (state / "ipam" / "net" / "leases").exists()
    return state


def e2fs(*words: str | Path) -> int:
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


@dataclass
class Told:
    """The acknowledged state: the owners of addresses, and the released leases.  Commands under way are in neither."""

    held: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    # Addresses of released leases: those in cooldown, and those reserved for a name.
    cooling: set[str] = field(default_factory=set)
    kept: dict[str, str] = field(default_factory=dict)

    @classmethod
    def by(cls, marks: list[str]) -> "Told":
        told, going = cls(), dict[str, str]()
        for what, name, *given in (mark.split(":", 2) for mark in marks):
            match what:
                case "add":
                    told.kept.pop(sticky(name), None)
                case "added":
                    told.held[name] = given[0]
                case "del":
                    going[name] = told.held.pop(name)
                case "deleted":
                    told.gone.add(name)
                    if cools(name):
                        told.cooling.add(going[name])
                    if sticky(name):
                        told.kept[sticky(name)] = going[name]
        return told


def lines(state: Path) -> list[dict[str, Any]]:
    """The leases and reserved addresses in the file itself, whatever an index contains."""
    data = (state / "ipam" / "net" / "leases").read_bytes()
    head, *found = [json.loads(line) for line in data.splitlines() if line.strip(b" \0")]
    assert head["schema"] == 1
    return found


def addresses(line: dict[str, Any]) -> str:
    return ",".join(address.partition("/")[0] for address in line["addresses"])


def answered(result: dict[str, Any]) -> str:
    return ",".join(ip["address"].partition("/")[0] for ip in result["ips"])


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory, in memory if possible: each cut writes a whole disk."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="hpn-cut-", dir=memory) as directory:
        yield Path(directory)


def test_no_cut_loses_a_lease_or_gives_an_address_twice(log: Path, scratch: Path) -> None:
    recorded = entries(log)
    random, count = Random(drawn.seed()), drawn.count(CUTS, "power cuts")
    first = next(i for i, entry in enumerate(recorded) if entry.text.startswith("added"))
    # Not before a mark: nothing is written there.
    candidates = [i for i, entry in enumerate(recorded) if i > first and entry.data and not entry.text]
    assert len(candidates) > CUTS, "too few writes were recorded"
    # The last point too: by then most commands are acknowledged.
    points = sorted([*random.sample(candidates[:-1], count - 1), candidates[-1]])
    acknowledged = kept_back = cooled = 0
    for point, cut in zip(points, cuts(recorded, SIZE, points, random), strict=True):
        told = Told.by(cut.marks)
        acknowledged = max(acknowledged, len(told.held) + len(told.gone))
        kept_back, cooled = max(kept_back, len(told.kept)), max(cooled, len(told.cooling))
        state = restored(cut, scratch)
        # The first call of the new boot reads every lease.
        newcomer = call(conf(state), "ADD", "newcomer", "")
        there = lines(state)
        found = {line["containerID"]: addresses(line) for line in there if "containerID" in line}
        assert {name: found.get(name) for name in told.held} == told.held, f"lost, cut at {point}"
        assert not told.gone & found.keys(), f"back from the dead, cut at {point}"
        given = [address for line in there for address in line.get("addresses", ())]
        assert len(given) == len(set(given)), f"given twice, cut at {point}"
        kept = {line["sticky"].partition(":")[0]: addresses(line) for line in there if line.get("sticky", "")
                and "released" in line}  # fmt: skip
        assert {name: kept.get(name) for name in told.kept} == told.kept, f"not kept for its name, cut at {point}"
        assert told.cooling <= {addresses(line) for line in there if "released" in line}, f"warm, cut at {point}"
        assert not (state / "ipam" / "net" / "quarantine").exists(), f"unreadable, cut at {point}"
        assert found["newcomer"] == answered(newcomer)
        for name, was in sorted(told.kept.items())[:1]:
            back = f"newcomer.{name}"
            assert answered(call(conf(state, back), "ADD", back, f"STICKY={name}")) == was, f"cut at {point}"
    assert acknowledged > 100
    assert kept_back > 5
    assert cooled > 5
