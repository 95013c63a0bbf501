"""One request: its JSON, its version, and its valid attachments."""

from typing import Any

import pytest

from base.protocol import spec
from base.protocol.errors import DecodeFailure, IncompatibleVersion, InvalidConfig
from base.protocol.spec import Key, Request


def test_decode() -> None:
    assert spec.decode(b' {"a": {"b": [1]}}\n') == {"a": {"b": [1]}}


def test_what_is_asked_again_is_answered_from_memory() -> None:
    asked = list[bytes]()
    length = spec.cached(lambda stdin, more: (asked.append(stdin), len(stdin) + more)[1])
    assert [length(b"abc", 1), length(b"abc", 1), length(b"abc", 2), length(b"abcd", 1)] == [4, 4, 5, 5]
    assert asked == [b"abc", b"abc", b"abcd"]
    for own in (b"x" * (1 << 12), b'{"prevResult":{}}'):
        asked.clear()
        assert [length(own, 1), length(own, 1)] == [len(own) + 1] * 2
        assert asked == [own, own]


@pytest.mark.parametrize(
    ("stdin", "why"),
    [
        (b"", "stdin is not JSON"),
        (b"nonsense", "stdin is not JSON"),
        (b'{"a": 1', "stdin is not JSON"),  # cut short
        (b'{"a": 1}{"a": 1}', "stdin is not JSON"),  # two documents
        (b"\xff\xff\xff", "stdin is not JSON"),  # no text at all
        (b"[" * 100_000, "stdin is not JSON"),  # deeper than the decoder's limit
        (b'{"a":' * 100_000, "stdin is not JSON"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "stdin is not JSON"),  # a number that Python refuses
        (b"[]", "stdin is a JSON list"),
        (b'[{"name": "n"}]', "stdin is a JSON list"),
        (b'"x"', "stdin is a JSON str"),
        (b"null", "stdin is a JSON NoneType"),
    ],
)
def test_decode_refuses(stdin: bytes, why: str) -> None:
    with pytest.raises(DecodeFailure) as refused:
        spec.decode(stdin)
    assert refused.value.msg.startswith(why)
    assert refused.value.msg.endswith("; send one network configuration object")
    assert refused.value.code == 6


@pytest.mark.parametrize(
    ("version", "commands"),
    [
        ("0.3.0", "ADD DEL VERSION"),
        ("0.3.1", "ADD DEL VERSION"),
        ("0.4.0", "ADD DEL CHECK VERSION"),  # introduced CHECK
        ("1.0.0", "ADD DEL CHECK VERSION"),
        ("1.1.0", "ADD DEL CHECK VERSION GC STATUS"),  # introduced GC and STATUS
    ],
)
def test_commands_of_each_version(version: str, commands: str) -> None:
    for command in ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"):
        if command in commands.split():
            assert spec.version_of({"cniVersion": version}, command) == version
            continue
        with pytest.raises(IncompatibleVersion) as refused:
            spec.version_of({"cniVersion": version}, command)
        assert refused.value.code == 1
        assert refused.value.msg.startswith(f"cniVersion '{version}' has no {command}; set cniVersion ")


@pytest.mark.parametrize("conf", [{}, {"cniVersion": ""}, {"cniVersion": None}])
def test_missing_version(conf: dict[str, Any]) -> None:
    assert spec.version_of(conf, "DEL") == "1.1.0"
    with pytest.raises(IncompatibleVersion) as refused:
        spec.version_of(conf, "ADD")
    assert (refused.value.code, refused.value.details[:17]) == (1, 'config is "0.1.0"')
    assert 'is missing, which means 0.1.0, and that is not supported; set "cniVersion": "1.0.0"' in refused.value.msg


@pytest.mark.parametrize(
    ("conf", "shown", "json"),
    [
        ({"cniVersion": "0.1.0"}, "'0.1.0'", '"0.1.0"'),  # ip4 and ip6: a shape that hpn does not write
        ({"cniVersion": "0.2.0"}, "'0.2.0'", '"0.2.0"'),
        ({"cniVersion": "1.2.0"}, "'1.2.0'", '"1.2.0"'),  # a future version
        ({"cniVersion": "1.1"}, "'1.1'", '"1.1"'),
        ({"cniVersion": 1.1}, "1.1", "1.1"),
        ({"cniVersion": ["1.1.0"]}, "['1.1.0']", '["1.1.0"]'),
        ({"cniVersion": {"a": 1}}, "{'a': 1}", '{"a": 1}'),
    ],
)
def test_unsupported_version(conf: dict[str, Any], shown: str, json: str) -> None:
    for command in ("DEL", "GC"):  # a pod must be deletable
        assert spec.version_of(conf, command) == "1.1.0"
    with pytest.raises(IncompatibleVersion) as refused:
        spec.version_of(conf, "ADD")
    assert refused.value.msg == (f"cniVersion {shown} is not supported; set one of 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0")
    # The details' wording is the specification's.
    assert refused.value.details == (f'config is {json}, plugin supports ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]')


@pytest.mark.parametrize("name", ["n", "0", "rail-0_a.b", "n" * 220])
def test_network_of(name: str) -> None:
    assert spec.network_of({"name": name}) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../etc", "a/b", "-a", "a b", "a\n", "é", "n" * 221, None, 5, ["n"]],
    ids=repr,
)
def test_network_of_refuses(name: Any) -> None:
    with pytest.raises(InvalidConfig) as refused:
        spec.network_of({"name": name})
    assert refused.value.msg.startswith(f"name {name!r} is not a network name: letters, digits")
    assert refused.value.code == 7


def test_network_of_nothing() -> None:
    with pytest.raises(InvalidConfig, match=r"^name None is not a network name"):
        spec.network_of({})


ONE = [{"containerID": "c1", "ifname": "eth0"}]
TWO = [{"containerID": "c2", "ifname": "eth0", "more": 1}, {"containerID": "c1", "ifname": "eth1"}]


@pytest.mark.parametrize(
    ("conf", "keys"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, None),  # Go's nil slice: the runtime lists nothing
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": None}, None),
        ({"cni.dev/valid-attachments": []}, set()),  # an empty list: no attachment is valid
        ({"cni.dev/attachments": []}, set()),
        ({"cni.dev/valid-attachments": ONE}, {Key("c1", "eth0")}),
        ({"cni.dev/attachments": TWO}, {Key("c2", "eth0"), Key("c1", "eth1")}),
        (
            {"cni.dev/valid-attachments": ONE, "cni.dev/attachments": TWO},
            {Key("c1", "eth0")},
        ),  # main's spelling takes precedence
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": ONE}, {Key("c1", "eth0")}),
        ({"cni.dev/valid-attachments": [], "cni.dev/attachments": ONE}, set()),
    ],
)
def test_valid_attachments(conf: dict[str, Any], keys: set[Key] | None) -> None:
    assert spec.valid_attachments(conf) == keys


# Read as an empty list, each of these would remove every attachment.
@pytest.mark.parametrize(
    "value",
    [
        5,
        True,
        False,
        0,
        "c1",
        pytest.param(""),
        pytest.param({}),
        {"containerID": "c1", "ifname": "eth0"},  # an attachment without its list
        ["c1"],
        [5],
        [None],
        [[]],
        [{}],
        [{"containerID": "c1"}],
        pytest.param([{"containerID": "c1", "ifname": None}]),
        pytest.param([{"containerID": 5, "ifname": "eth0"}]),
        [{"containerid": "c1", "ifname": "eth0"}],
    ],
    ids=repr,
)
@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_malformed_attachments(key: str, value: Any) -> None:
    with pytest.raises(InvalidConfig) as refused:
        spec.valid_attachments({key: value})
    assert refused.value.msg == f"{key} {value!r} is not a list of {{containerID, ifname}}"


def test_key_is_unambiguous() -> None:
    assert str(Key("a-b.c", "eth0.1")) == "a-b.c:eth0.1"


def test_but_leaves_the_original() -> None:
    request = Request({"CNI_COMMAND": "ADD", "X": "1"}, b"in")
    other = request.but(CNI_COMMAND="DEL")
    assert (other.environ, other.stdin) == ({"CNI_COMMAND": "DEL", "X": "1"}, b"in")
    assert request.but(stdin=b"").stdin == b""
    assert request == Request({"CNI_COMMAND": "ADD", "X": "1"}, b"in")
