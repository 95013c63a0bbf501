"""hpn hints: the selected pod, the JSON document, and safe quoting of names."""

import json
import shlex
import subprocess
from dataclasses import replace

import pytest
from support.hinted import IPV6, LIBRARIES, ONE, OTHER, PAGE, SOCKETS, TWO, TYPE_2, Hints, gid, rail

from base.protocol.spec import Key
from ctl.main import main


@pytest.mark.parametrize("what", ["train-0", "default/train-0", "0123456789abcdef", "0123", "/run/netns/nobody"])
def test_whom_it_finds(hints: Hints, what: str) -> None:
    stranger = replace(ONE, pod="other/web-0", key=Key("fedc", "hpn0"), netns="/run/netns/other")
    assert hints((SOCKETS, stranger), what=what) == TYPE_2


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("train-1", "nothing is attached to 'train-1' (searched "),
        ("012", "nothing is attached"),
        ("default/train", "nothing is attached"),
        ("/proc/self/ns/net", "nothing is attached"),
        ("dead", "its pod is gone"),
        ("twice", "'twice' matches several pods: a/twice (a), b/twice (b); give namespace/pod"),
    ],
)
def test_whom_it_does_not_find(hints: Hints, what: str, words: str) -> None:
    records = (
        ONE,
        replace(ONE, pod="default/dead", key=Key("x", "hpn0"), boot="older"),
        *(replace(ONE, pod=f"{name}/twice", key=Key(name, "hpn0")) for name in ("a", "b")),
    )
    assert words in hints(records, what=what, status=1)


@pytest.mark.parametrize(
    "words", [["p", "--nccl-version", "1.3"], ["p", "--for", "gloo"], ["p", "--for", "ucx", "--template"], []]
)
def test_wrong_options(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["hpn", "hints", *words])
    assert (ended.value.code, "hpn hints: error: " in capsys.readouterr().err) == (2, True)


def test_json(hints: Hints) -> None:
    """docs/user/rdma.md names the members."""
    said = json.loads(hints((ONE, OTHER), "--json", "--nccl-version", "2.26"))
    assert said == {
        "for": "nccl",
        "pod": "default/train-0",
        "containerID": "0123456789abcdef",
        "set": {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_4:1,mlx5_5:1", "NCCL_DEBUG": "INFO"},
        "unset": ["NCCL_IB_GID_INDEX"],
        "notes": ["NCCL chooses the GID itself"],
        "attachments": [
            {
                "network": "rail0",
                "ifname": record.key.ifname,
                "addresses": ["10.56.0.2/24", "fd00:56::2/64"],
                "rdma": {"devices": record.rdma_devs, "gids": record.gids},
            }
            for record in (ONE, OTHER)
        ],
    }
    assert all(f'"{member}"' in PAGE for member in said)


def test_the_page(hints: Hints) -> None:
    said = hints((ONE, TWO), "--nccl-version", "2.26")
    assert f"hpn hints default/train-0 --nccl-version 2.26\n{said}```" in PAGE


def test_every_variable_has_its_source(hints: Hints) -> None:
    """docs/user/rdma.md has a row for each variable that is ever set or unset."""
    for records in ((ONE, OTHER), (IPV6,), (SOCKETS,), (rail("hpn0", devices=("ibp0",)),)):
        for library in LIBRARIES:
            for version in ("2.20", "2.26"):
                said = json.loads(hints(records, "--json", "--for", library, "--nccl-version", version))
                assert [name for name in (*said["set"], *said["unset"]) if f"| `{name}` |" not in PAGE] == []


@pytest.mark.parametrize("name", ["a\nexit 3", "$(exit 3)", "'; exit 3; '", "\x1b[2J", "`exit 3`"])
def test_a_name_is_never_a_command(hints: Hints, name: str) -> None:
    """A shell that reads the lines only sets variables, with any device name."""
    one, without = rail("hpn0", gid(name, 3)), rail("hpn0", devices=(name,))
    for records in ((one,), (one, OTHER), (without,)):
        for library in LIBRARIES:
            said = hints(records, "--for", library)
            assert all(line.startswith(("export ", "unset ", "# ")) for line in said.splitlines())
            assert said.replace("\n", "").isprintable()
            subprocess.run(["sh", "-euc", said], check=True)
            assert all(len(shlex.split(line, comments=True)) in (0, 2) for line in said.splitlines())
