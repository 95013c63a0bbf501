"""One request: its environment, its JSON, its version, its arguments."""

from typing import Any

import pytest

from cni.protocol import spec
from cni.protocol.errors import BadEnvironment, DecodeFailure, IncompatibleVersion, InvalidConfig
from cni.protocol.spec import Key, Request

COMPLETE = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/p",
    "CNI_IFNAME": "hpn0",
    "CNI_PATH": "/opt/cni/bin",
}


def test_variables() -> None:
    """As getenv, and so the launcher, has them."""
    found = spec.variables(b"A=1\0B=x=y\nz\0A=2\0C=\0no variable\0D=\xff\0")
    assert found == {"A": "1", "B": "x=y\nz", "C": "", "D": "\udcff"}


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("ADD", "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"),
        ("CHECK", "CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME"),
        ("DEL", "CNI_CONTAINERID, CNI_IFNAME"),  # the namespace may be gone
        ("GC", "CNI_PATH"),
    ],
)
@pytest.mark.parametrize("value", [None, ""])  # an empty variable is a missing one
def test_missing_variables_are_all_named(command: str, missing: str, value: str | None) -> None:
    names = () if value is None else COMPLETE.keys() - {"CNI_COMMAND"}
    with pytest.raises(BadEnvironment) as refused:
        spec.check_environment(Request({"CNI_COMMAND": command, **dict.fromkeys(names, "")}))
    assert refused.value.msg == f"{command} requires {missing}: set and not empty"
    assert refused.value.code == 4


def test_only_the_missing_variable_is_named() -> None:
    environ = {k: v for k, v in COMPLETE.items() if k != "CNI_NETNS"}
    with pytest.raises(BadEnvironment, match=r"^ADD requires CNI_NETNS: "):
        spec.check_environment(Request(environ))


@pytest.mark.parametrize("command", ["VERSION", "STATUS"])  # libcni sends both with empty variables
def test_commands_that_need_no_variable(command: str) -> None:
    spec.check_environment(Request({"CNI_COMMAND": command, "CNI_CONTAINERID": "", "CNI_IFNAME": ""}))


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
def test_a_complete_environment_serves_every_command(command: str) -> None:
    spec.check_environment(Request(COMPLETE | {"CNI_COMMAND": command}))


@pytest.mark.parametrize("command", ["", "add", "UPDATE", " ADD"])
def test_unknown_command_lists_the_known(command: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        spec.check_environment(Request(COMPLETE | {"CNI_COMMAND": command}))
    assert refused.value.msg == (
        f"CNI_COMMAND={command!r} is not a command; use one of ADD, DEL, CHECK, GC, STATUS, VERSION"
    )


@pytest.mark.parametrize(
    "container_id",
    [
        "-a",  # an option
        ".a",  # a hidden file
        "_a",
        "a/b",  # another directory
        "..",
        "a:b",  # the separator of the state files' names
        "a b",
        "a\n",  # where "$" would still match
        "é",
        "a" * 221,  # its state file's name would not fit NAME_MAX
    ],
)
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_bad_container_id(command: str, container_id: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        spec.check_environment(Request(COMPLETE | {"CNI_COMMAND": command, "CNI_CONTAINERID": container_id}))
    assert refused.value.msg.startswith(f"CNI_CONTAINERID={container_id!r} is not a container id: letters, digits")


@pytest.mark.parametrize("container_id", ["a", "0", "A_b.c-D", "a" * 220, "a.."])
def test_good_container_id(container_id: str) -> None:
    spec.check_environment(Request(COMPLETE | {"CNI_CONTAINERID": container_id}))


@pytest.mark.parametrize(
    ("ifname", "why"),
    [
        ("a" * 16, "1 to 15 bytes"),  # IFNAMSIZ counts the terminating zero
        ("é" * 8, "1 to 15 bytes"),  # 16 bytes in 8 characters
        (".", "'.' and '..' are directories"),  # of /proc/sys/net/ipv4/conf
        ("..", "'.' and '..' are directories"),
        ("a/b", "no '/', ':'"),
        ("a:b", "no '/', ':'"),  # an alias to old tools, and our separator
        ("a b", "white space"),
        ("a\tb", "white space"),
        ("hpn0\n", "white space"),
        ("a\u00a0b", "white space"),
        ("a\x01", "control characters"),
        # bytes that are no UTF-8, as Python's environment shows them
        pytest.param("\udcff", "no '/', ':'"),
        # the kernel makes a number of it, and the link is born under another name than the one that is undone
        pytest.param("hpn%d", "'%'"),
        pytest.param("%", "'%'"),
    ],
)
def test_bad_ifname(ifname: str, why: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        spec.check_environment(Request(COMPLETE | {"CNI_IFNAME": ifname}))
    assert refused.value.msg.startswith(f"CNI_IFNAME={ifname!r} cannot name an interface: ")
    assert why in refused.value.msg


def test_empty_ifname() -> None:
    assert spec.bad_ifname("") == "1 to 15 bytes"


@pytest.mark.parametrize(
    "ifname", ["a", "hpn0", "a" * 15, "é" * 7 + "x", "a.b", "...", "eth0.100", "-a"]
)  # 15 bytes are fine in any alphabet; a dot is a VLAN's
def test_good_ifname(ifname: str) -> None:
    assert spec.bad_ifname(ifname) == ""
    spec.check_environment(Request(COMPLETE | {"CNI_IFNAME": ifname}))


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
        (b"[" * 100_000, "stdin is not JSON"),  # deeper than the decoder can go
        (b'{"a":' * 100_000, "stdin is not JSON"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "stdin is not JSON"),  # a number Python refuses to make
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
        ("0.4.0", "ADD DEL CHECK VERSION"),  # brought CHECK
        ("1.0.0", "ADD DEL CHECK VERSION"),
        ("1.1.0", "ADD DEL CHECK VERSION GC STATUS"),  # brought GC and STATUS
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
    with pytest.raises(IncompatibleVersion) as refused:
        spec.version_of(conf, "ADD")
    assert (refused.value.code, refused.value.details[:17]) == (1, 'config is "0.1.0"')
    assert 'is missing, which means 0.1.0, and that is not supported; set "cniVersion": "1.0.0"' in refused.value.msg


@pytest.mark.parametrize(
    ("conf", "shown", "json"),
    [
        ({"cniVersion": "0.1.0"}, "'0.1.0'", '"0.1.0"'),  # ip4 and ip6: a shape we do not write
        ({"cniVersion": "0.2.0"}, "'0.2.0'", '"0.2.0"'),
        ({"cniVersion": "1.2.0"}, "'1.2.0'", '"1.2.0"'),  # not yet written
        ({"cniVersion": "1.1"}, "'1.1'", '"1.1"'),
        ({"cniVersion": 1.1}, "1.1", "1.1"),
        ({"cniVersion": ["1.1.0"]}, "['1.1.0']", '["1.1.0"]'),
        ({"cniVersion": {"a": 1}}, "{'a': 1}", '{"a": 1}'),
    ],
)
def test_unsupported_version(conf: dict[str, Any], shown: str, json: str) -> None:
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


MULTUS = (
    "IgnoreUnknown=true;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u;"
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u"
)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        (";", {}),
        ("IP=10.0.0.5", {"IP": "10.0.0.5"}),
        ("IP=10.0.0.5;", {"IP": "10.0.0.5"}),  # a trailing separator
        ("IP=", {"IP": ""}),
        ("IP=a;IP=b", {"IP": "b"}),  # the last wins
        ("MAC=02:00:00:00:00:01;GATEWAY=10.0.0.1", {"MAC": "02:00:00:00:00:01", "GATEWAY": "10.0.0.1"}),
        ("FOO=1;IgnoreUnknown=1", {"FOO": "1", "IgnoreUnknown": "1"}),
        ("IgnoreUnknown=true;FOO=1", {"FOO": "1", "IgnoreUnknown": "true"}),
        ("IgnoreUnknown=True;FOO=1", {"FOO": "1", "IgnoreUnknown": "True"}),
        (  # Multus' own, twice
            MULTUS,
            {
                "IgnoreUnknown": "1",
                "K8S_POD_NAMESPACE": "default",
                "K8S_POD_NAME": "p",
                "K8S_POD_INFRA_CONTAINER_ID": "c1",
                "K8S_POD_UID": "u",
            },
        ),
    ],
)
def test_cni_args(text: str, pairs: dict[str, str]) -> None:
    assert spec.cni_args(text) == pairs


@pytest.mark.parametrize(
    ("text", "msg"),
    [
        ("IP", "CNI_ARGS: 'IP' is not KEY=VALUE; separate pairs by ';'"),
        ("=x", "CNI_ARGS: '=x' is not KEY=VALUE; separate pairs by ';'"),
        ("IP=a=b", "CNI_ARGS: 'IP=a=b' is not KEY=VALUE; separate pairs by ';'"),  # libcni: exactly one "="
        ("IP=a;MAC", "CNI_ARGS: 'MAC' is not KEY=VALUE; separate pairs by ';'"),
        ("IgnoreUnknown=1;IP", "CNI_ARGS: 'IP' is not KEY=VALUE; separate pairs by ';'"),  # no key is not unknown
        ("FOO=1", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
        ("ip=1", "CNI_ARGS: unknown ip='1'; remove, or add IgnoreUnknown=1"),  # keys have a case
        (" IP=1", "CNI_ARGS: unknown  IP='1'; remove, or add IgnoreUnknown=1"),
        ("B=2;IP=1;A=1", "CNI_ARGS: unknown A='1', B='2'; remove, or add IgnoreUnknown=1"),  # all of them
        ("FOO=1;IgnoreUnknown=0", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
        ("FOO=1;IgnoreUnknown=", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
        ("FOO=1;IgnoreUnknown=yes", "CNI_ARGS: unknown FOO='1'; remove, or add IgnoreUnknown=1"),
    ],
)
def test_cni_args_refused(text: str, msg: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        spec.cni_args(text)
    assert refused.value.msg == msg


@pytest.mark.parametrize(
    ("runtime", "args_cni", "env", "answer"),
    [
        ("r", "a", "e", "r"),
        (None, "a", "e", "a"),
        (None, None, "e", "e"),
        (None, None, None, None),
        ("r", None, None, "r"),
        ("", "a", "e", "a"),  # a falsy value is no request
        ("", "", "e", "e"),
        ([], None, "e", "e"),
        ("", "", "", None),
        (["x"], "a", "e", ["x"]),  # whole, and not merged
    ],
)
def test_requested(runtime: Any, args_cni: Any, env: Any, answer: Any) -> None:
    conf: dict[str, Any] = {"runtimeConfig": {}, "args": {"cni": {}}}
    if runtime is not None:
        conf["runtimeConfig"]["mac"] = runtime
    if args_cni is not None:
        conf["args"]["cni"]["mac"] = args_cni
    assert spec.requested(conf, {} if env is None else {"MAC": env}, "mac", "MAC") == answer


@pytest.mark.parametrize(
    "conf", [{}, {"runtimeConfig": None, "args": None}, {"args": {}}, {"args": {"cni": None}}], ids=repr
)
def test_requested_of_nothing(conf: dict[str, Any]) -> None:
    assert spec.requested(conf, {}, "mac", "MAC") is None


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"runtimeConfig": []}, "runtimeConfig []"),
        ({"runtimeConfig": "mac"}, "runtimeConfig 'mac'"),
        ({"runtimeConfig": 5}, "runtimeConfig 5"),
        ({"args": ["cni"]}, "args ['cni']"),
        ({"args": {"cni": "x"}}, "args.cni 'x'"),
        ({"runtimeConfig": {"mac": "r"}, "args": 5}, "args 5"),  # refused although nothing of it is needed
    ],
)
def test_requested_of_something_else(conf: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        spec.requested(conf, {}, "mac", "MAC")
    assert refused.value.msg == f"{named} is not an object"


ONE = [{"containerID": "c1", "ifname": "eth0"}]
TWO = [{"containerID": "c2", "ifname": "eth0", "more": 1}, {"containerID": "c1", "ifname": "eth1"}]


@pytest.mark.parametrize(
    ("conf", "keys"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, None),  # Go's nil slice: the runtime vouches for nothing
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": None}, None),
        ({"cni.dev/valid-attachments": []}, set()),  # and this one says that all are dead
        ({"cni.dev/attachments": []}, set()),
        ({"cni.dev/valid-attachments": ONE}, {Key("c1", "eth0")}),
        ({"cni.dev/attachments": TWO}, {Key("c2", "eth0"), Key("c1", "eth1")}),
        ({"cni.dev/valid-attachments": ONE, "cni.dev/attachments": TWO}, {Key("c1", "eth0")}),  # main's spelling wins
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": ONE}, {Key("c1", "eth0")}),
        ({"cni.dev/valid-attachments": [], "cni.dev/attachments": ONE}, set()),
    ],
)
def test_valid_attachments(conf: dict[str, Any], keys: set[Key] | None) -> None:
    assert spec.valid_attachments(conf) == keys


# Each of these read as an empty list would have every attachment removed.
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
        {"containerID": "c1", "ifname": "eth0"},  # one that should be in a list
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
