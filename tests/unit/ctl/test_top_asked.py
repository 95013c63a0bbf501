"""The rows of hpn top, and its comparison of rails."""

import json
from pathlib import Path

import pytest

from base.protocol.errors import BadEnvironment
from ctl.screen import Table
from ctl.top import command as top
from ctl.top.counters import Name, Sample, Seen, Totals
from ctl.top.rates import Rates
from hardware.rdma_users import OF_KERNEL, User

FAST, SLOW = 10**9, 10**8


def seen(tx: int, *owner: str) -> Seen:
    namespace, pod = owner or ("", "")
    return Seen("ACTIVE", (namespace, pod), Totals(0, tx))


def step(ports: dict[Name, Seen], *wanted: str) -> top.Step:
    """Return one second in which each port sent all of its count."""
    rates = {name: Rates(tx=float(one.totals.tx_bytes)) for name, one in ports.items()}
    return Sample(1.0, ports, set(wanted)), rates, 1.0


def rails(ports: dict[Name, Seen], *wanted: str) -> dict[str, str]:
    """Return the column RAILS by port."""
    (frame,) = top._frames(iter([step(ports, *wanted)]), {})
    assert isinstance(frame[0], Table)
    return {row[1]: row[8] for row in frame[0].rows}


def test_a_pod_without_a_namespace() -> None:
    """A pod's name may have no namespace, as from podman."""
    assert (seen(0, "", "web").pod, seen(0, "ns", "web").pod, seen(0).pod) == ("web", "ns/web", "")
    assert rails({("a", "1"): seen(0, "", "web"), ("b", "1"): seen(0, "ns", "db")}, "web") == {"a/1": "-"}


SHARED: dict[Name, Seen] = {("mlx5_0", "1"): seen(0), ("mlx5_1", "1"): seen(0)}
TRAIN, BY_UID = User("ns", "train", "u-1"), User(uid="u-2")
USES = {
    ("mlx5_0", TRAIN): {"qp": 12, "mr": 40, "cq": 6, "objects": 70, "objects_peak": 90},
    ("mlx5_0", OF_KERNEL): {"qp": 1, "cq": 1},
    ("mlx5_1", BY_UID): {"mr": 1},
}


def shared(*wanted: str) -> top.Step:
    return Sample(1.0, SHARED, set(wanted), USES), dict.fromkeys(SHARED, Rates()), 1.0


@pytest.mark.parametrize(
    ("wanted", "devices"),
    [
        ((), "01"), (("train",), "0"), (("ns/train",), "0"), (("u-1",), "0"), (("u-2",), "1"), (("mlx5_1",), "1"),
        (("train", "u-2"), "01"), (("kernel",), ""),
    ],
)  # fmt: skip
def test_the_users_of_a_shared_device(wanted: tuple[str, ...], devices: str) -> None:
    """A pod selects the devices that it uses."""
    (frame,) = top._frames(iter([shared(*wanted)]), {})
    tables = [part for part in frame if isinstance(part, Table)]
    rows = {
        "0": [("mlx5_0", "(kernel)", "1", "0", "1", "-", "-"), ("mlx5_0", "ns/train", "12", "40", "6", "70", "90")],
        "1": [("mlx5_1", "u-2", "0", "1", "0", "-", "-")],
    }
    assert [row[1] for row in tables[0].rows] == [f"mlx5_{n}/1" for n in devices]
    assert [row for table in tables[1:] for row in table.rows] == [row for n in devices for row in rows[n]]


def test_the_users_as_a_document() -> None:
    assert json.loads(top._document(shared("mlx5_0")))["users"] == [
        {"device": "mlx5_0", "pod": "", "uid": "", "other": "kernel", "qp": 1, "mr": 0, "cq": 1},
        {"device": "mlx5_0", "pod": "ns/train", "uid": "u-1", "other": "", "qp": 12, "mr": 40, "cq": 6, "objects": 70,
         "objects_peak": 90},
    ]  # fmt: skip


def test_ports_that_nobody_has_are_not_compared() -> None:
    """Ports without a pod are not compared: here an idle NIC is beside busy ones."""
    ports = {(f"mlx5_{n}", "1"): seen(tx) for n, tx in enumerate((FAST, FAST, 0))}
    assert set(rails(ports).values()) == {"-"}


def test_a_rail_is_compared_with_those_that_are_not_shown() -> None:
    ports = {(f"mlx5_{n}", "1"): seen(tx, "ns", "p") for n, tx in enumerate((FAST, FAST, SLOW))}
    assert rails(ports, "mlx5_2") == {"mlx5_2/1": "0.10 of median"}
    assert rails(ports, "mlx5_2/1", "mlx5_0") == {"mlx5_2/1": "0.10 of median", "mlx5_0/1": "-"}
    assert len(rails(ports, "ns/p")) == len(rails(ports, "p")) == len(rails(ports)) == 3


def test_a_port_that_goes_before_the_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A vanished port shows zero traffic, even beside other ports."""
    gone, others = step({}), step({("mlx5_1", "1"): seen(FAST)})
    summary = top._line_by_line(iter([gone, others]), ("mlx5_0", "1"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Monitoring mlx5_0...")
    assert [line.split()[2:4] for line in lines[2:]] == [["0", "B/s"]] * 2
    assert " mlx5_0  /  traffic statistics" in summary


def test_lines_and_documents_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        top.answer(["-l", "--json"])
    assert e.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_name_that_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters are escaped, because a pod that owns an RDMA device can rename it."""
    name = ("mlx5\x1b[31m", "1")
    said = top._line_by_line(iter([(Sample(0.0, {name: seen(0)}), {name: Rates()}, 1.0)]), name)
    said += capsys.readouterr().out
    assert said.count("mlx5\\x1b[31m") == 2
    assert "\x1b" not in said


@pytest.mark.parametrize("words", [["nowhere"], []])
def test_nothing_to_show(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "bus").mkdir()
    with pytest.raises(BadEnvironment, match="no RDMA device"):
        top.answer(words, tmp_path)
