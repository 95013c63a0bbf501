"""Restored interrupts of a device, in a tree like /proc/irq."""

from pathlib import Path
from typing import Any

import pytest

from base.kernel import cpus
from base.protocol.spec import Key
from base.state.pod import Identity
from base.state.record import Record
from cni.features import steering

IRQS = {str(number): {"value": "1", "before": "0-3"} for number in (9, 10, 100)}


@pytest.fixture
def irq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return each interrupt's file, with the value that ADD left."""
    for number in IRQS:
        (tmp_path / number).mkdir()
        (tmp_path / number / "smp_affinity_list").write_text("1\n")
    monkeypatch.setattr(cpus, "IRQ", tmp_path)
    return tmp_path


def record(**fields: Any) -> Record:
    kept: dict[str, Any] = {"complete": True, "steering": {"irqs": IRQS}, **fields}
    return Record("n", Key("c", "hpn0"), "/n", Identity(1, 1), kind="sriov", link={}, config={}, **kept)


def now(irq: Path) -> list[str]:
    return [cpus.affinity(int(number)) for number in IRQS if (irq / number / "smp_affinity_list").is_file()]


def test_all_of_them(irq: Path) -> None:
    steering.put_back_interrupts(record(), (9, 10, 100))
    assert now(irq) == ["0-3", "0-3", "0-3"]


def test_one_that_is_refused_does_not_keep_the_others(irq: Path) -> None:
    """It is a directory here, which cannot be written as a file."""
    (irq / "9/smp_affinity_list").unlink()
    (irq / "9/smp_affinity_list").mkdir()
    steering.put_back_interrupts(record(), (9, 10, 100))
    assert now(irq) == ["0-3", "0-3"]


def test_only_those_that_are_the_devices_now(irq: Path) -> None:
    steering.put_back_interrupts(record(), (10,))
    assert now(irq) == ["1", "0-3", "1"]


def test_what_somebody_has_changed_stays(irq: Path) -> None:
    (irq / "10/smp_affinity_list").write_text("2\n")
    steering.put_back_interrupts(record(), (9, 10, 100))
    assert now(irq) == ["0-3", "2", "0-3"]
    # After an ADD that was killed, the kernel's spelling of the values is unknown.
    steering.put_back_interrupts(record(complete=False), (9, 10, 100))
    assert now(irq) == ["0-3", "0-3", "0-3"]
