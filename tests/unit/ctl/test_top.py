"""hpn top, on trees in the format of /sys with growing counters."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.sysfs_tree import Tree, write

from base.protocol.errors import BadEnvironment
from ctl.screen import Alarm, Table
from ctl.top import command as top
from ctl.top.counters import Sample, Seen, Totals, sample
from ctl.top.rates import Rates

ROOT = Path(__file__).parents[3]
PF, MAC = "0000:3b:00.0", "02:00:00:00:00:0a"
# For each driver: its counters, and the octets and packets that they represent, received and sent.
DRIVERS: dict[str, tuple[dict[str, dict[str, int | str]], tuple[int, int, int, int]]] = {
    "mlx5": (
        {"counters": {"port_rcv_data": 10, "port_xmit_data": 20, "port_rcv_packets": 3, "port_xmit_packets": 4},
         "hw_counters": {"lifespan": 10, "out_of_sequence": 0}}, (40, 80, 3, 4)),
    "erdma": (
        {"hw_counters": {"rx_bytes_cnt": 40, "tx_bytes_cnt": 80, "rx_packets_cnt": 3, "tx_packets_cnt": 4}},
        (40, 80, 3, 4)),
    "the vendor's erdma": (
        {"hw_counters": {"hw_rx_bytes_cnt": 40, "hw_tx_bytes_cnt": 80, "hw_rx_packets_cnt": 3, "hw_tx_packets_cnt": 4}},
        (40, 80, 3, 4)),
    "bnxt_re": ({"hw_counters": {"rx_bytes": 40, "tx_bytes": 80, "rx_pkts": 3, "tx_pkts": 4}}, (40, 80, 3, 4)),
    "rxe of a new kernel": (
        {"hw_counters": {"rcvd_bytes": 40, "sent_bytes": 80, "rcvd_pkts": 3, "sent_pkts": 4}}, (40, 80, 3, 4)),
    "one whose port has no PMA": (
        {"counters": {"port_rcv_data": "N/A (no PMA)", "port_xmit_data": "N/A (no PMA)"},
         "hw_counters": {"rx_bytes": 40, "tx_bytes": 80}}, (40, 80, 0, 0)),
}  # fmt: skip


@pytest.fixture
def port(tmp_path: Path) -> Path:
    """The directory of mlx5_0's one port, which is active and uses eth0."""
    tree = Tree(tmp_path)
    home = tree.pci(PF)
    tree.netdev("eth0", home, address=MAC)
    tree.rdma("mlx5_0", home, 0)
    port = tmp_path / "class/infiniband/mlx5_0/ports/1"
    files(port, state="4: ACTIVE")
    files(port / "gids", **{"0": "fe80:0000:0000:0000:0000:00ff:fe00:000a"})
    files(port / "gid_attrs/ndevs", **{"0": "eth0"})
    return port


@pytest.fixture(autouse=True)
def no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's own attachments."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/none")


def files(folder: Path, **values: int | str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, **values)


def only(root: Path) -> Totals:
    (seen,) = sample(set(), pytest.fail, root).ports.values()
    return seen.totals


@pytest.mark.parametrize("driver", DRIVERS)
def test_drivers(tmp_path: Path, port: Path, driver: str) -> None:
    counters, wanted = DRIVERS[driver]
    for folder, values in counters.items():
        files(port / folder, **values)
    found = only(tmp_path)
    assert (found.rx_bytes, found.tx_bytes, found.rx_packets, found.tx_packets) == wanted
    assert (found.known, found.netdev) == (True, "")


def test_soft_roce_counts_by_its_interface(tmp_path: Path, port: Path) -> None:
    files(port / "hw_counters", rcvd_pkts=3, sent_pkts=4, retry_exceeded_err=1)
    files(tmp_path / "class/net/eth0/statistics", rx_bytes=40, tx_bytes=80, rx_packets=30, tx_packets=40)
    assert only(tmp_path) == Totals(40, 80, 3, 4, {"retry_exceeded_err": 1}, "eth0")


def test_another_interface_of_that_name_is_not_asked(tmp_path: Path, port: Path) -> None:
    """An interface of the same name is ignored: the device's own interface may be in a pod."""
    files(port / "hw_counters", rcvd_pkts=3, sent_pkts=4)
    files(tmp_path / "class/net/eth0/statistics", rx_bytes=40, tx_bytes=80)
    write(tmp_path / "class/net/eth0", address="02:00:00:00:00:0b")
    assert only(tmp_path) == Totals(0, 0, 3, 4, known=False)


def grow(counters: Path, stop: threading.Event) -> None:
    """Increase the counters in both directions until stopped."""
    number = 0
    # time: the pace of counters
    while not stop.wait(0.01):
        number += 1
        for name, factor in (("port_rcv_data", 1), ("port_xmit_data", 2)):
            # The write is atomic, as in the kernel: a reader sees the old number or the new one.
            fresh = counters.parent / name
            fresh.write_text(f"{number * factor * 1000}\n")
            fresh.rename(counters / name)


@pytest.fixture
def growing(port: Path) -> Iterator[Path]:
    """Run a port with counters; it sends twice as fast as it receives."""
    files(port / "counters", port_rcv_data=0, port_xmit_data=0, port_rcv_packets=0, port_xmit_packets=0)
    stop = threading.Event()
    thread = threading.Thread(target=grow, args=(port / "counters", stop))
    thread.start()
    yield port / "counters"
    stop.set()
    thread.join()


def test_all_that_is_counted_is_shown(tmp_path: Path, growing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sum of the rates is at most the growth of the counters."""
    before = int((growing / "port_xmit_data").read_text()) * 4
    assert top.answer(["--json", "--count", "5", "--interval", "0.2"], tmp_path) == ("", 0)
    after = int((growing / "port_xmit_data").read_text()) * 4
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(steps) == 5
    assert 0 < round(sum(one["ports"][0]["tx"] * one["seconds"] for one in steps)) <= after - before
    for (port,) in (one["ports"] for one in steps):
        assert (port["device"], port["port"], port["state"], port["pod"]) == ("mlx5_0", 1, "ACTIVE", "")


def seen(tx: int = 0, *, owner: tuple[str, str] = ("", ""), errors: Mapping[str, int] | None = None) -> Seen:
    return Seen("ACTIVE", owner, Totals(0, tx, errors=errors or {}))


def rows(*samples: dict[str, Seen]) -> list[tuple[str, ...]]:
    """Return the last table, from samples one second apart."""
    taken = [Sample(float(at), {(name, "1"): one for name, one in ports.items()}) for at, ports in enumerate(samples)]
    rest = iter(taken[1:])
    steps = top._steps(taken[0], 0.0, len(taken) - 1, lambda: next(rest))
    *_, frame = top._frames(steps, {})
    assert isinstance(frame[0], Table)
    return list(frame[0].rows)


def test_a_rail_that_is_behind() -> None:
    """A slow rail is compared only with its own pod's rails."""
    pod, other = ("ns", "a"), ("ns", "b")
    rates = {"r0": (10**9, pod), "r1": (10**9, pod), "r2": (10**8, pod), "r3": (10**8, other), "r4": (10**8, other)}
    table = rows({name: seen(owner=owner) for name, (_, owner) in rates.items()},
                 {name: seen(tx, owner=owner) for name, (tx, owner) in rates.items()})  # fmt: skip
    assert [(row[0], row[4], row[8]) for row in table] == [
        ("ns/a", "8.00 Gb/s", "-"), ("ns/a", "8.00 Gb/s", "-"), ("ns/a", "800.00 Mb/s", "0.10 of median"),
        ("ns/b", "800.00 Mb/s", "-"), ("ns/b", "800.00 Mb/s", "-"),
    ]  # fmt: skip


def test_idle_rails_are_not_compared() -> None:
    assert [row[8] for row in rows({"a": seen(), "b": seen()}, {"a": seen(1000), "b": seen(1)})] == ["-", "-"]


def test_errors_that_grow() -> None:
    """The table shows all errors since the start, with an alarm only while they grow."""
    steps = [{"a": seen(errors={"out_of_sequence": number, "symbol_error": 7})} for number in (5, 8, 8)]
    ((*_, grown),), ((*_, still),) = rows(*steps[:2]), rows(*steps)
    assert (grown, type(grown), still, type(still)) == ("out_of_sequence +3", Alarm, "out_of_sequence +3", str)


def test_counters_that_began_again() -> None:
    """A device that returned shows no negative traffic."""
    assert rows({"a": seen(10**9)}, {"a": seen(1000)})[0][4] == "8.00 Kb/s"
    assert rows({}, {"a": seen(10**9)})[0][4] == "0 b/s"


def test_the_course() -> None:
    assert rows(*({"a": seen(tx)} for tx in (0, 0, 50, 150, 250)))[0][7] == "▁▅██"


LAST = """\

 mlx5_0  /  traffic statistics

                           rx         |       tx
--------------------------------------+------------------
  bytes                    11.06 GiB  |       11.18 GiB
--------------------------------------+------------------
          max            52.43 MiB/s  |     52.10 MiB/s
      average             4.03 MiB/s  |      4.07 MiB/s
          min                  0 B/s  |           0 B/s
--------------------------------------+------------------
  packets                    8406769  |         8546764
--------------------------------------+------------------
          max              38990 p/s  |       37488 p/s
      average               2988 p/s  |        3038 p/s
          min                  0 p/s  |           0 p/s
--------------------------------------+------------------
  time                 46.88 minutes
"""


def test_line_by_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines have the layout of eadm stat -l, from a user's document."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    mib = 2**20
    fast = Rates(52.43 * mib, 52.10 * mib, 38990, 37488)
    rest = 46.88 * 60 - 2
    slow = Rates(
        (11.06 * 2**30 - fast.rx) / rest, (11.18 * 2**30 - fast.tx) / rest,
        (8406769 - 38990) / rest, (8546764 - 37488) / rest,
    )  # fmt: skip
    one = Sample(0.0, {("mlx5_0", "1"): seen()})
    steps = iter([(one, {("mlx5_0", "1"): rates}, passed) for rates, passed in ((Rates(), 1), (fast, 1), (slow, rest))])
    summary = top._line_by_line(steps, ("mlx5_0", "1"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Monitoring mlx5_0...    (press CTRL-C to stop)", ""]
    assert lines[2][9:] == "  rx:           0 B/s     0 p/s          tx:           0 B/s     0 p/s"
    assert lines[3][9:] == "  rx:     52.43 MiB/s 38990 p/s          tx:     52.10 MiB/s 37488 p/s"
    assert summary == f"\n{LAST}"


def test_one_of_many_is_to_be_named(tmp_path: Path, port: Path) -> None:
    (port.parent / "2").mkdir()
    with pytest.raises(BadEnvironment, match=r"these match: mlx5_0/1, mlx5_0/2; name one"):
        top.answer(["-l"], tmp_path)
    assert top.answer(["-l", "mlx5_0/2", "--count", "1", "--interval", "0.1"], tmp_path)[0].count("rx") == 1


@pytest.mark.parametrize("words", [["--interval", "0"], ["--interval", "x"], ["--count", "0"], ["--count", "-1"],
                                   ["--interval", "nan"], ["--interval", "inf"], ["--interval", "1e300"]])  # fmt: skip
def test_wrong_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        top.answer(words)
    assert e.value.code == 2
    said = capsys.readouterr().err
    assert f"{words[0]}: {words[1]!r} is not a" in said


RUN = """
import sys
from pathlib import Path
from ctl.top import command as top
text, status = top.answer(sys.argv[2:], Path(sys.argv[1]))
sys.stdout.write(text)
sys.exit(status)
"""


# A background test run ignores SIGINT, and its children would inherit that.
SIGINT_HEARD = ("env", "--default-signal=INT")


@pytest.mark.parametrize(("words", "first", "last"), [([], "POD", ""), (["-l"], "Monitoring", "seconds")])
def test_ctrl_c(tmp_path: Path, growing: Path, words: list[str], first: str, last: str) -> None:
    """After Ctrl-C the command ends with status 0; with -l it prints the summary."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-c", RUN, str(tmp_path), "--interval", "0.1", *words]
    at_keyboard: dict[str, Any] = {"cwd": ROOT, "stdout": inner, "stderr": inner, "env": os.environ | {"TERM": "xterm"}}
    with subprocess.Popen([*SIGINT_HEARD, *command], **at_keyboard) as one:
        os.close(inner)
        said = b""
        while said.count(b"B/s") < 2 and said.count(b"b/s") < 2:
            said += os.read(outer, 4096)
        one.send_signal(signal.SIGINT)
        while part := _read(outer):
            said += part
    os.close(outer)
    assert one.returncode == 0, said.decode()
    assert first in said.decode()
    assert last in said.decode()
    assert "Traceback" not in said.decode()


def test_ctrl_c_as_the_first_line_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary includes each shown line."""

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(top, "show_over", interrupted)
    name = ("mlx5_0", "1")
    said = top._line_by_line(iter([(Sample(0.0, {name: seen()}), {name: Rates()}, 1.0)]), name)
    assert "1 seconds" in said


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # EIO: the other end is closed (pty(7))
        return b""
