"""The power is cut hundreds of times while eight processes attach and detach: no acknowledged lease is lost, and no
address has two owners.

One boot of the lab records every write of a disk under them (tests/lab/recording.py).  Here the record is cut at
random, what was under way is there or not sector by sector, ext4's own journal is replayed by e2fsck, and the store is
read by the real program, which is in another boot than the guest was.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from conftest import require
from dm_log import Cut, cuts, entries
from lab.recording import SIZE, call, conf

ROOT = Path(__file__).parents[1]
LAB = ROOT / "netns-fixtures" / "lab"
CUTS = int(os.environ.get("HPN_POWER_CUTS", "200"))
# Each writer's.
OPERATIONS = 60


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "HPN_LAB" in os.environ:
        pytest.skip("is what boots the guest that this is")
    ready = subprocess.run([LAB, "--prepare"], capture_output=True, text=True, check=False)
    if ready.returncode:
        require("lab", ready.stderr.strip())
    out = tmp_path_factory.mktemp("recorded")
    inside = ["env", f"PYTHONPATH={ROOT}:{ROOT / 'tests'}", sys.executable, "-m", "lab.recording", str(OPERATIONS)]
    done = subprocess.run(
        [LAB, "--pfs", "0", "--out", out, *inside], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "log"


def restored(cut: Cut, scratch: Path) -> Path:
    """The store as the next boot finds it."""
    image, state = scratch / "disk", scratch / "state"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    image.write_bytes(cut.disk)
    # Its journal, and then it must be whole: to mend more than that would hide what is looked for.
    e2fs("e2fsck", "-y", "-E", "journal_only", image)
    assert e2fs("e2fsck", "-fn", image) == 0, f"ext4 is not whole in {image}"
    e2fs("debugfs", "-R", f"rdump ipam {state}", image)
    assert (state / "ipam" / "net" / "leases").exists()
    return state


def e2fs(*words: str | Path) -> int:
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


def told(marks: list[str]) -> tuple[dict[str, str], set[str]]:
    """What was acknowledged to stand, and what to be gone; what was under way is in neither."""
    held, gone = dict[str, str](), set[str]()
    for what, name, *given in (mark.split(":", 2) for mark in marks):
        match what:
            case "added":
                held[name] = given[0]
            case "del":
                held.pop(name, None)
            case "deleted":
                gone.add(name)
    return held, gone


def leases(state: Path) -> Iterator[tuple[str, str]]:
    """Who has what, as a program says that has to make the index anew, and nothing of it."""
    data = (state / "ipam" / "net" / "leases").read_bytes()
    lines = [json.loads(line) for line in data.splitlines() if line.strip(b" \0")]
    assert lines[0]["schema"] == 1
    for line in lines:
        if "containerID" in line:
            yield line["containerID"], ",".join(a.partition("/")[0] for a in line["addresses"])


@pytest.fixture
def scratch() -> Iterator[Path]:
    """In memory where there is some, for it is a disk a cut."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="hpn-cut-", dir=memory) as directory:
        yield Path(directory)


def test_no_cut_loses_a_lease_or_gives_an_address_twice(log: Path, scratch: Path) -> None:
    recorded = entries(log)
    random = Random(1)
    first = next(i for i, entry in enumerate(recorded) if entry.text.startswith("added"))
    # Not before a mark: nothing is written there.
    candidates = [i for i, entry in enumerate(recorded) if i > first and entry.data and not entry.text]
    points = sorted(random.sample(candidates, min(CUTS, len(candidates))))
    assert len(points) == CUTS, f"only {len(candidates)} writes were recorded"
    acknowledged = 0
    for point, cut in zip(points, cuts(recorded, SIZE, points, random), strict=True):
        held, gone = told(cut.marks)
        acknowledged = max(acknowledged, len(held) + len(gone))
        state = restored(cut, scratch)
        # The first call of the new boot reads every lease.
        newcomer = call(conf(state), "ADD", "newcomer", "")
        found = dict(leases(state))
        assert {name: found.get(name) for name in held} == held, f"lost, cut at {point}"
        assert not gone & found.keys(), f"back from the dead, cut at {point}"
        given = [address for addresses in found.values() for address in addresses.split(",")]
        assert len(given) == len(set(given)), f"given twice, cut at {point}"
        assert not (state / "ipam" / "net" / "quarantine").exists(), f"unreadable, cut at {point}"
        assert found["newcomer"] == ",".join(ip["address"].partition("/")[0] for ip in newcomer["ips"])
    assert acknowledged > 100
