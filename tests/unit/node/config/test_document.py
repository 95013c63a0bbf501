"""Text that is neither JSON nor YAML, files of no dialect, and unusable files: each is refused with a message."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.elapsed import cost, is_proportional
from support.node_files import ALL, OWN, SRIOV, own, read, sriov

from base.yaml_document import parse
from node import config
from node.config import BadFile

TRAILING = """\
{
  "resourceList": [
    {
      "resourceName": "a",
      "selectors": [{
        "vendors": ["14e4"]
      }],
    }
  ]
}
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TRAILING, "line 7: trailing comma before }; remove the comma"),
        ('{"resourceList": [1,\n2 ,\n\n]}', "line 2: trailing comma before ]"),
        ('{"mode": "hca",}', "line 1: trailing comma before }"),
        ('{"mode": "hca"\n "x": 1}', "line 2, column 2: it is not JSON (Expecting ',' delimiter)"),
        ("{\n// all\n}", "line 2: JSON has no comments"),
        ('{"mode": "hca", # all\n}', "line 1: JSON has no comments"),
        ('{"mode": NaN}', "NaN is not JSON"),
        ('{"mode": ' + "1" * 5000 + "}", "a number that is too long"),
        ('{"mode": "a\nb"}', "it is not JSON (Invalid control character at)"),
        ('{"mode": "\0"}', "it is not JSON"),
        ("{}{}", "line 1, column 3: it is not JSON (Extra data)"),
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("[" * 1_000_000, "more than 32 deep"),
        ("[" * 33 + "]" * 33, "more than 32 deep"),
        ('{"a":' * 500_000, "more than 32 deep"),
        ("[]", "[] is not an object with resources"),
        ("null", "null is not an object with resources"),
        ("{}", "it has none of the keys resources, configList, resourceList, mode"),
        ('{"resource": []}', "did you mean resources?"),
        ('{"x": 1, "ConfigLists": []}', "did you mean configList?"),
        ('{"Resources": []}', "did you mean resources?"),
        ('{"resourceList": [], "ConfigList": []}', "it has configList and resourceList, which are keys of different"),
        ('{"apiVersion": "v1", "kind": "ConfigMap", "data": {}}', 'a Kubernetes object (kind "ConfigMap")'),
        ('{"resources": [], "resources": []}', 'the key "resources" is given twice in one object'),
    ],
)
def test_json_that_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadFile) as refused:
        read(text)
    assert why in refused.value.msg


# A few lines that expand to a billion.
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [*a]", "line 1: aliases are not supported"),
        (LAUGHS, "line 2: aliases are not supported"),
        ("mode: hca\nmode: sriov\n", 'line 2: the key "mode" is repeated'),
        ("resources:\n- name: a\n  name: b\n", 'line 3: the key "name" is repeated'),
        ("? [a]\n: b\n", "line 1: a key must be text"),
        (
            "mode: !!python/object/apply:os.system [id]",
            'line 1: the tag "tag:yaml.org,2002:python/object/apply:os.system"',
        ),
        ("mode: !x hca", 'line 1: the tag "!x"'),
        ("mode: !!set {a}", "line 1: the tag"),
        ("mode: !!int hca", 'line 1: the tag "tag:yaml.org,2002:int"'),
        ("mode: " + "1" * 5000, "it is not YAML (Exceeds the limit"),
        ("mode: [hca\n", "line 2, column 1: it is not YAML"),
        ("mode:\thca\n\tx: 1", "it is not YAML"),
        ("mode: hca\n---\nmode: hca\n", "line 2, column 1: it is not YAML"),
        ("*: x", "it is not YAML"),
        ("mode: a\x01", "it is not YAML"),
        ("# nothing\n", "null is not an object with resources"),
        ("- " * 20_000 + "x", "more than 32 deep"),
        ("[" * 20_000, "more than 32 deep"),
    ],
)
def test_yaml_that_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadFile) as refused:
        read(text, is_yaml=True)
    assert why in refused.value.msg


@pytest.mark.parametrize(
    "text",
    [
        lambda many: json.dumps({"mode": "hca"} | {f"key{n}": n for n in range(many)}),
        lambda many: json.dumps({"resources": []} | {f"key{n}": n for n in range(many)}),
        lambda many: '{"mode": "hca", ' + ", ".join(f'"key{n // 2}": 1' for n in range(many)) + "}",
        lambda many: json.dumps({"resources": [{}] * many}),
        lambda many: json.dumps({"resourceList": [{"resourceName": f"a{n}", "selectors": {}} for n in range(many)]}),
        lambda many: json.dumps(sriov(selectors={"pfNames": [f"a#{n}" for n in range(many)]})),
    ],
    ids=["unknown", "refused", "twice", "wrong", "resources", "entries"],
)
def test_many_take_little_time(text: Callable[[int], str]) -> None:

    def reads(written: str) -> None:
        with suppress(BadFile):
            read(written)

    def cost_of(many: int) -> float:
        written = text(many)
        return cost(lambda: reads(written))

    assert is_proportional(cost_of, 250, 8_000)


@pytest.mark.parametrize("data", [b"\xff\xfe", b'{"resources":\n"\xe9"}', b"mode: \xed\xa0\x80"])
def test_what_is_no_utf_8(data: bytes) -> None:
    with pytest.raises(BadFile, match=r"line [12]: it is not UTF-8 \(byte 0x"):
        config.settings(data, is_yaml=True)
    with pytest.raises(BadFile):
        config.settings(data, is_yaml=False)


def test_what_is_no_utf_8_in_a_peers_file() -> None:
    """Go reads U+FFFD instead."""
    data = json.dumps(sriov(additionalInfo={"*": {"place": "?"}})).encode().replace(b"?", b"\xe9")
    settings = config.settings(data, is_yaml=False)
    assert settings.resources[0].extra == {"*": {"place": "\ufffd"}}
    assert settings.notes == ("line 1: it is not UTF-8 (byte 0xe9); save it as UTF-8",)


def test_a_byte_order_mark() -> None:
    assert config.settings(b"\xef\xbb\xbf" + json.dumps(OWN).encode(), is_yaml=False) == read(OWN)


# Beyond these PyYAML does not join the two halves of an escaped character.  YAML has keys of 1024 characters at most.
KEYS = st.text(st.characters(exclude_categories=("Cs", "Cc"), max_codepoint=0xFFFF), min_size=1, max_size=150)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(KEYS, VALUES, min_size=1))
def test_json_is_yaml(document: dict[str, object]) -> None:
    """A file renamed to .yaml has the same meaning."""
    data = json.dumps(document).encode()
    assert parse(data, is_yaml=True) == parse(data, is_yaml=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory that every user can enter, as with a ConfigMap."""
    tmp_path.chmod(0o777)
    return tmp_path


def test_the_name_tells_what_it_is_else_the_contents(folder: Path) -> None:
    yaml = "resources:\n- {name: example.com/a, kind: vf}\n"
    for name, text in (
        ("a.yaml", yaml),
        ("a.YML", yaml),
        ("a", yaml),
        ("a.conf", json.dumps(own())),
        ("b.yaml", json.dumps(own())),
    ):
        (folder / name).write_text(text)
        assert config.read(folder / name) == read(own())
    (folder / "a.json").write_text(yaml)
    with pytest.raises(BadFile, match=r"a\.json: line 1, column 1: it is not JSON"):
        config.read(folder / "a.json")


def test_a_mounted_configmap(folder: Path) -> None:
    """Its files are links, so that all of them change at once."""
    (folder / "..2026").mkdir()
    (folder / "..2026" / "config.json").write_text(json.dumps(SRIOV))
    (folder / "..data").symlink_to("..2026")
    (folder / "config.json").symlink_to("..data/config.json")
    assert config.read(folder / "config.json", prefix="x.com").resources[0].prefix == "x.com"


def test_files_that_are_not_read(folder: Path) -> None:
    file = folder / "node.yaml"
    with pytest.raises(BadFile, match=r"node\.yaml: no such file; conf/devices\.yaml is an example"):
        config.read(file)
    with pytest.raises(BadFile, match="a directory, not a regular file"):
        config.read(folder)
    os.mkfifo(folder / "fifo")
    with pytest.raises(BadFile, match="a FIFO, not a regular file"):
        config.read(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    with pytest.raises(BadFile, match="cannot be read"):
        config.read(folder / "loop")
    with pytest.raises(BadFile, match="cannot be read"):
        config.read(Path("/a\0b"))
    with pytest.raises(BadFile):
        config.read(Path("/etc/hpn-\ud800"))
    with file.open("wb") as large:
        large.truncate(100 << 20)
    with pytest.raises(BadFile, match="it is longer than 1048576 bytes"):
        config.read(file)


def test_the_files_of_two_plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first is read, with a note."""
    ours, one, other = (folder / name for name in ("devices.yaml", "shared.json", "sriov.json"))
    monkeypatch.setattr(config, "OURS", ours)
    monkeypatch.setattr(config, "DEFAULTS", (ours, one, other))
    for file in (one, other):
        file.write_text(json.dumps(OWN))
        said = config.read(one).notes
        note = f"{other} exists too and is not read; for both, write their resources into {ours}"
        assert said == (note,) * other.exists()
    assert config.read(folder / "shared.json", cdi=True).notes[:1] == (note,)
    elsewhere = folder / "mine.json"
    elsewhere.write_text(json.dumps(OWN))
    assert config.read(elsewhere).notes == ()


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write(folder: Path, mode: int) -> None:
    file = folder / "node.yaml"
    file.write_text(json.dumps(OWN))
    file.chmod(mode)
    with pytest.raises(BadFile, match=f"can be written by others than root .* then: chmod go-w {file}"):
        config.read(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a file away")
def test_a_file_of_somebody_else(folder: Path) -> None:
    file = folder / "node.yaml"
    file.write_text(json.dumps(OWN))
    os.chown(file, 65534, 65534)
    with pytest.raises(BadFile, match=r"can be written by others than root \(owner 65534"):
        config.read(file)


def test_the_file_is_named(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(sriov(resourceName="a.b", selectors={"isRdma": True})))
    with pytest.raises(BadFile) as refused:
        config.read(file)
    assert refused.value.msg.startswith(f'{file}: resourceList[0].resourceName "a.b" must be of')
    file.write_text(json.dumps(own(kind="x", zzz=1)))
    with pytest.raises(BadFile) as refused:
        config.read(file)
    assert len(refused.value.__notes__) == 1


def test_all_four_are_known() -> None:
    assert {read(file).dialect for file in ALL} == {
        "hpn", "k8s-rdma-shared-dev-plugin", "sriov-network-device-plugin", "k8s-rdma-sriov-dev-plugin",
    }  # fmt: skip
    assert len(config.DEFAULTS) == 4
