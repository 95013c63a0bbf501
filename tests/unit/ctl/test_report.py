"""The report of a node with every kind of data: complete, well-formed, and safe with any name."""

import re
import stat
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from ctl.main import VERSION, main
from ctl.report.command import PARTS, ask
from ctl.report.drawing import draw
from ctl.report.page import Answer, page

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\udcff&\"'"
SVG = "{http://www.w3.org/2000/svg}"


def device(number: int, vfs: int = 4, **more: Any) -> dict[str, Any]:
    """Return a PF in the format of hpn devices --json, with free VFs."""
    address = f"0000:{number:02x}:00.0"
    below = [
        {"device": f"0000:{number:02x}:00.{vf + 1}", "kind": "vf", "index": vf, "netdevs": [], "driver": "mlx5_core",
         "usedBy": "free"}
        for vf in range(vfs)
    ]  # fmt: skip
    return {
        "device": address, "kind": "pf", "netdevs": [f"rail{number}"], "vendor": "15b3", "product": "101d",
        "driver": "mlx5_core", "numa": number // 2, "linkType": "ether", "usedBy": "",
        "rdma": [{"device": f"mlx5_{number}", "ports": [{"port": 1, "state": "ACTIVE"}]}],
        "gpus": [{"address": f"0000:9{number}:00.0", "word": "PIX"}], "below": below,
    } | more  # fmt: skip


def attachment(pod: str, device: str = "", **more: Any) -> dict[str, Any]:
    return {
        "pod": pod, "containerID": "c" * 64, "ifname": "hpn0", "network": "rail0", "kind": "sriov", "device": device,
        "addresses": ["10.56.0.2/24"], "rdma": {"devices": ["mlx5_9"], "gids": []}, "alive": True, "complete": True,
    } | more  # fmt: skip


def told(**documents: Any) -> dict[str, Answer]:
    return {part: Answer(PARTS[part][0], documents.get(part, {})) for part in PARTS}


class Tags(HTMLParser):
    """The tags of a page, and its tables: the cells of each row, the header first."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words = list[str](), list[tuple[str, str | None]](), ""
        self.tables = list[list[list[str]]]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.tags[-1] in ("th", "td"):
            self.tables[-1][-1][-1] += data


def lines_to(drawn: str) -> list[str]:
    return [str(path.get("stroke")) for path in ET.fromstring(drawn).iter(f"{SVG}path")]


def test_each_attachment_has_a_line_from_its_device() -> None:
    devices = [device(0), device(1), device(2)]
    attachments = [
        attachment("default/a", "0000:00:00.2"), attachment("default/a", "0000:01:00.1", ifname="hpn1"),
        attachment("default/b", "", master="rail2", kind="macvlan"), attachment("default/c", "0000:77:00.0"),
    ]  # fmt: skip
    drawn = draw(devices, attachments)
    assert len(lines_to(drawn)) == 3  # the last one's device is not listed
    assert len(set(lines_to(drawn))) == 3  # each NIC has its own colour
    words = [text.text or "" for text in ET.fromstring(drawn).iter(f"{SVG}text")]
    assert [word for word in words if word.startswith("default/")] == ["default/a", "default/b", "default/c"]
    assert [word for word in words if word.startswith("NUMA")] == ["NUMA node 0", "NUMA node 1"]
    assert "hpn0 10.56.0.2/24, hpn1 10.56.0.2/24" in words


def test_claims() -> None:
    """An attachment has its claim.  A claim that awaits its interface is in the picture, with a line to its device."""
    waiting = {"claim": "default/b-rails", "request": "rails", "device": "0000:01:00.1", "attach": "multus"}
    drawn = draw([device(0), device(1)], [], [waiting])
    assert len(lines_to(drawn)) == 1
    words = [text.text or "" for text in ET.fromstring(drawn).iter(f"{SVG}text")]
    assert words[-2:] == ["claim default/b-rails", "rails not attached"]
    known = {"attachments": [attachment("default/a", claim={"uid": "u", "name": "default/a-rails"})]}
    whole = Tags(page("t", [], told(attachments={**known, "claims": [waiting]}))).words.partition("The documents")[0]
    assert "default/adefault/a-railshpn0" in whole
    assert "Prepared claims, not attached: 1" in whole
    assert "default/b-railsrails0000:01:00.1multus" in whole


def test_each_cell_is_in_the_column_of_its_name() -> None:
    finding = {"severity": "error", "id": "gid-missing", "evidence": "no GID", "remedy": "wait"}
    waiting = {"claim": "default/b-rails", "request": "rails", "device": "0000:01:00.1", "attach": "multus"}
    gid = {"device": "mlx5_4", "port": 1, "index": 3, "gid": "::ffff:10.56.0.2", "type": "RoCE v2", "netdev": "rail0"}
    kept = {"dead": 1, "cooling": 2, "sticky": 4, "conflict": 8, "doubtful": 16, "unreadable": 32}
    pools = [{"ranges": ["10.56.0.0/16", "fd00::/64"], "held": 7, "free": 2000, "size": None, **kept}]
    attached = attachment("default/a", "0000:3b:00.1", claim={"name": "default/a-rails"}, trouble="its VF is lost")
    refused = attachment("default/c", trouble="no such pool", file="/run/x.json")
    known = {"attachments": [attached], "claims": [waiting], "refused": [refused]}
    networks = {"networks": [{"network": "rail0", "pools": pools}]}
    parts = told(findings={"findings": [finding]}, attachments=known, gids={"gids": [gid]}, pools=networks)
    assert [dict(zip(header, row, strict=True)) for header, row in Tags(page("t", [], parts)).tables] == [
        finding,
        {
            "pod": "default/a", "claim": "default/a-rails", "interface": "hpn0", "network": "rail0", "kind": "sriov",
            "device": "0000:3b:00.1", "addresses": "10.56.0.2/24", "RDMA": "mlx5_9", "state": "alive",
            "trouble": "its VF is lost",
        },
        waiting,
        {
            "pod": "default/c", "network": "rail0", "addresses": "10.56.0.2/24", "trouble": "no such pool",
            "file": "/run/x.json",
        },
        {
            "network": "rail0", "ranges": "10.56.0.0/16\nfd00::/64", "held": "7", "kept back": "63", "free": "2,000",
            "size": "-",
        },
        {name: str(value) for name, value in gid.items()},
    ]  # fmt: skip


def test_the_device_of_each_kind() -> None:
    """Of a child its master, and of an interface without a bus address its name."""
    names = {"device": "0000:3b:00.1", "netdev": "veth9", "master": "bond0"}
    known = {"attachments": [attachment("default/a", **{"device": "", key: name}) for key, name in names.items()]}
    (table,) = Tags(page("t", [], told(attachments=known))).tables
    assert [row[table[0].index("device")] for row in table] == ["device", *names.values()]


@pytest.mark.parametrize("kind", ["netdev", "vf", "sf"])
def test_a_device_that_is_no_pf_is_drawn_alone(kind: str) -> None:
    """Soft-RoCE's interface, or a VF without its PF: hpn devices lists neither VFs nor GPUs for it."""
    alone = {name: value for name, value in device(1).items() if name not in ("below", "gpus")} | {"kind": kind}
    drawn = draw([device(0), alone], [attachment("default/a", "", master="rail1", kind="macvlan")])
    assert sum(one[0] == "nic" for one in boxes(drawn)) == 2
    assert len(lines_to(drawn)) == 1


def boxes(drawn: str) -> list[tuple[str, float, float, float, float]]:
    """Return each rectangle's class, left and right edge, upper and lower edge."""
    found = []
    for rect in ET.fromstring(drawn).iter(f"{SVG}rect"):
        x, y, wide, high = (float(str(rect.get(name))) for name in ("x", "y", "width", "height"))
        found.append((str(rect.get("class")), x, x + wide, y, y + high))
    return found


@pytest.mark.parametrize("vfs", [0, 1, 16, 17, 128])
def test_nothing_lies_over_another(vfs: int) -> None:
    drawn = draw([device(number, vfs) for number in range(8)], [attachment(f"default/{n}") for n in range(30)])
    found = boxes(drawn)
    _, _, wide, high = map(float, str(ET.fromstring(drawn).get("viewBox")).split())
    assert all(left >= 0 and right <= wide and top >= 0 and bottom <= high for _, left, right, top, bottom in found)
    for kind in ("nic", "numa", "free", "pod", "gpu"):
        same = sorted((top, bottom, left, right) for one, left, right, top, bottom in found if one == kind)
        for (_, above, left, right), (top, _, other_left, other_right) in pairwise(same):
            assert above <= top or right <= other_left or other_right <= left, kind
    assert sum(one[0] == "free" for one in found) == 8 * vfs


def test_no_name_is_obeyed() -> None:
    hostile = device(0, netdevs=[EVIL], driver=EVIL)
    hostile["below"][0]["usedBy"] = EVIL
    whole = page(EVIL, [EVIL], told(
        devices={"devices": [hostile]}, attachments={"attachments": [attachment(EVIL, "0000:00:00.1", network=EVIL)]},
        findings={"findings": [dict.fromkeys(("severity", "id", "evidence", "remedy"), EVIL)]},
    ))  # fmt: skip
    whole.encode()
    tags = Tags(whole)
    assert {"script", "img", "link", "iframe", "a"}.isdisjoint(tags.tags)
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name in ("src", "href")]
    assert "\x1b" not in whole
    assert "alert(1)" in tags.words
    (policy,) = [value for name, value in tags.attributes if name == "content" and "default-src" in str(value)]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not re.search(r"url\(|@import", whole)


def test_what_could_not_be_read_is_said() -> None:
    parts = told() | {"attachments": Answer("hpn inspect --json", {}, "reading /run/hpn: Permission denied")}
    assert "hpn inspect --json: reading /run/hpn: Permission denied" in Tags(page("t", [], parts)).words


def test_a_command_that_breaks_does_not_take_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report shows a command's failure, which another kernel's files may cause."""

    def broken(*_words: object) -> tuple[str, int]:
        raise KeyError("below")

    monkeypatch.setattr("ctl.devices.gids.answer", broken)
    assert ask("gids", "", "") == Answer("hpn gids --json", {}, "KeyError: 'below'")


def test_what_is_wrong_with_an_attachment_is_said() -> None:
    error = {"command": "DEL", "time": "2026-01-02T03:04:05.678Z", "code": 11, "msg": "the PF is away"}
    left = attachment("default/b", trouble="no such pool", file="/run/hpn/refused/rail0/x.json")
    known = {
        "attachments": [attachment("default/a", trouble="its VF is lost", lastError=error)],
        "refused": [left], "unreadable": ["/run/hpn/attachments/rail0/y.json"],
    }  # fmt: skip
    parts = told(attachments=known, devices={"devices": [], "unread": ["the GPUs of node 1 cannot be read"]})
    words = Tags(page("t", [], parts)).words.partition("The documents")[0]
    for said in (
        "its VF is lost\nDEL failed, 2026-01-02 03:04:05Z, code 11: the PF is away",
        "Detached, and not released by their IPAM: 1", "no such pool", "/run/hpn/refused/rail0/x.json",
        "/run/hpn/attachments/rail0/y.json cannot be read", "the GPUs of node 1 cannot be read",
    ):  # fmt: skip
        assert said in words, said


@pytest.mark.parametrize(
    ("is_", "state"),
    [
        ({}, "alive"), ({"alive": False}, "dead"), ({"complete": False}, "alive, incomplete"),
        ({"kind": "lost", "complete": False}, "lost"),
        ({"kind": "lost", "alive": False, "complete": False}, "dead, incomplete"),
    ],
)  # fmt: skip
def test_how_an_attachment_is(is_: dict[str, Any], state: str) -> None:
    """The report shows an attachment's state; after damage to a record the pod's state is unknown."""
    whole = page("t", [], told(attachments={"attachments": [attachment("default/a", **is_)]}))
    kind = state.partition(",")[0]
    assert f'<td class="{kind}">{state}</td>' in whole


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], int]:
    """Return a function that runs hpn report on a machine without attachments and leases."""
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")
    return lambda name: main(["hpn", "report", str(tmp_path / name)])


def test_of_this_machine(elsewhere: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All parts answer, and the page contains their documents."""
    assert elsewhere("r.html") == 0, capsys.readouterr()
    file = tmp_path / "r.html"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    tags = Tags(file.read_text())
    assert "What could not be read" not in tags.words
    assert tags.tags.count("details") == len(PARTS)
    for command, _, _ in PARTS.values():
        assert command in tags.words
    assert '"checks": [' in tags.words
    assert f"hpn {VERSION} (from its sources)" in tags.words


def test_a_file_that_is_there_stays(
    elsewhere: Callable[[str], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.html").write_text("mine")
    (tmp_path / "link.html").symlink_to(tmp_path / "r.html")
    for name in ("r.html", "link.html", "no/such.html"):
        assert elsewhere(name) == 1
    said = capsys.readouterr().err
    assert said.count("exists already; name another file, or remove it") == 2
    assert "cannot be created: No such file or directory" in said
    assert (tmp_path / "r.html").read_text() == "mine"
