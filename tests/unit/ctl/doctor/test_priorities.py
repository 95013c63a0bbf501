"""hpn doctor's findings about Ethernet priorities and the clock, from answers in the kernel's layout."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.doctor_node import PFS, Node

from base.kernel import dcb
from base.kernel.dcb import Dcb
from base.kernel.netlink import attr, text
from ctl.doctor import command
from ctl.doctor.command import facts
from ctl.doctor.model import Facts, Finding, Severity

# include/uapi/linux/dcbnl.h: IEEE_8021QAZ_APP_SEL_ETHERTYPE, _DSCP, DCB_APP_SEL_PCP
ETHERTYPE, DSCP, PCP = 1, 5, 255
MLX5 = Dcb((3,), tuple((dscp, dscp >> 3) for dscp in range(64)))


def answer(pfc: int, *apps: tuple[int, int, int], trust: bytes = b"") -> bytes:
    """The kernel's answer in the layout of net/dcb/dcbnl.c; an application is selector, priority, protocol."""
    ieee = attr(1, bytes(59))  # struct ieee_ets
    ieee += attr(2, struct.pack("=BBBxHxx16Q", 8, pfc, 0, 0, *range(16)))
    ieee += attr(3, b"".join(attr(2 if app[0] == PCP else 1, struct.pack("=BBH", *app)) for app in apps))
    ieee += attr(11, b"".join(attr(1, bytes([one])) for one in trust)) if trust else b""
    return bytes([0, 21, 0, 0]) + attr(1, text("rail0")) + attr(13 | 0x8000, ieee) + attr(14, b"\x09")


@pytest.mark.parametrize(
    ("body", "known", "words"),
    [
        (answer(0), Dcb(), "no PFC"),
        (answer(0b11000), Dcb((3, 4)), "PFC on 3, 4"),
        (
            answer(8, (DSCP, 6, 48), (DSCP, 3, 26), (ETHERTYPE, 3, 35093), (PCP, 1, 2), (DSCP, 3, 25), trust=b"\5\xff"),
            Dcb((3,), ((25, 3), (26, 3), (48, 6)), ("dscp", "pcp")),
            "PFC on 3; DSCP 25-26 to 3, 48 to 6; trust dscp pcp",
        ),
        (bytes([0, 21, 0, 0]) + attr(1, text("rail0")), None, "None"),
        (b"", None, "None"),
    ],
)  # fmt: skip
def test_the_kernels_answer(body: bytes, known: Dcb | None, words: str) -> None:
    assert dcb.parse(body) == known
    assert f"{known}" == words


def test_a_whole_map() -> None:
    runs = ", ".join(f"{first}-{first + 7} to {first >> 3}" for first in range(0, 64, 8))
    assert f"{MLX5}" == f"PFC on 3; DSCP {runs}"


@pytest.fixture
def node() -> Iterator[Node]:
    with TemporaryDirectory(prefix="hpn-test-") as folder:
        node = Node(Path(folder, "root"))
        yield node
        for sock in node.sockets:
            sock.close()


def known(node: Node, *priorities: Dcb | None) -> Facts:
    """The node's facts, with the priority settings of its two rails."""
    found = facts(node.root, "", "")
    by_pf = dict(zip(PFS, priorities, strict=True))
    nics = tuple(replace(nic, dcb=by_pf.get(nic.device.id)) for nic in found.hardware.nics)
    return replace(found, hardware=replace(found.hardware, nics=nics))


@pytest.mark.parametrize("other", [Dcb((4,), MLX5.dscp), Dcb((3,)), Dcb((3,), MLX5.dscp, ("dscp",)), Dcb()])
def test_rails_that_differ(node: Node, other: Dcb) -> None:
    ((name, one),) = command.findings(known(node, MLX5, other))
    assert (name, one.severity) == ("pfc-differs", Severity.WARNING)
    for pf, rail, priorities in zip(PFS, ("rail0", "rail1"), (MLX5, other), strict=True):
        assert f"{pf}/net/{rail}: {priorities}" in one.evidence
    for both in (MLX5, other, None):
        assert command.findings(known(node, both, both)) == []
    assert command.findings(known(node, MLX5, None)) == []  # the second rail has no known settings


def mark(node: Node, *classes: int) -> None:
    for number, value in enumerate(classes):
        path = node.at(f"sys/class/infiniband/mlx5_{number}/tc/1/traffic_class")
        path.write_text(f"Global tclass={value}\n")


def test_rdma_that_is_marked_for_another_priority(node: Node) -> None:
    """106 is DSCP 26 and an ECN bit; 160 is DSCP 40, priority 5."""
    mark(node, 160, 160)
    found: list[tuple[str, Finding]] = command.findings(known(node, MLX5, MLX5))
    assert [name for name, _ in found] == ["traffic-class-lossy"] * 2
    for (_, one), number in zip(found, (0, 1), strict=True):
        marked = f"infiniband/mlx5_{number}/tc/1/traffic_class: Global tclass=160, which is DSCP 40 with priority 5"
        assert marked in one.evidence
        assert one.remedy.startswith(f"dcb pfc set dev rail{number} prio-pfc 5:on")
    also = Dcb((3, 5), MLX5.dscp)
    assert command.findings(known(node, also, also)) == []
    mark(node, 106, 106)
    assert command.findings(known(node, MLX5, MLX5)) == []


@pytest.mark.parametrize("priorities", [Dcb(), Dcb((), MLX5.dscp), Dcb((3,)), Dcb((3,), ((26, 3),))])
def test_where_nobody_can_say_which_priority_that_is(node: Node, priorities: Dcb) -> None:
    mark(node, 160, 160)
    assert command.findings(known(node, priorities, priorities)) == []


@pytest.mark.parametrize(
    ("now", "synchronized", "found"),
    [
        (0.0, True, {}), (0.0, False, {}), (1.8e9, True, {}), (1.8e9, False, {"clock-unsynchronized": "note"}),
        (1.0, True, {"clock-wrong": "error"}), (1.7e9, False, {"clock-wrong": "error"}),
    ],
)  # fmt: skip
def test_the_clock(now: float, synchronized: bool, found: dict[str, str]) -> None:
    """One fault gives one finding; files of another kernel give none."""
    machine = replace(Facts().machine, now=now, synchronized=synchronized)
    said = [(name, one) for name, one in command.findings(Facts(machine)) if name.startswith("clock")]
    assert {name: one.severity for name, one in said} == found


def test_whose_clock_it_is(node: Node) -> None:
    assert facts(node.root, "", "").machine.now == 0
    node.at("proc/sys/kernel/random/boot_id").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    assert facts(node.root, "", "").machine.now > 1.7e9
