"""The CNI_ variables of a request: which are required, and what may be in them."""

import pytest

from base.protocol import spec
from base.protocol.errors import BadEnvironment
from base.protocol.spec import Request

COMPLETE = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/p",
    "CNI_IFNAME": "hpn0",
    "CNI_PATH": "/opt/cni/bin",
}
NAMES_OF_FILES = ("all", "default", "bonding_masters")


def test_variables() -> None:
    """As getenv, and so the launcher, reads them."""
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
    assert refused.value.msg == f"{command} requires {missing}; set each to a value"
    assert refused.value.code == 4


def test_only_the_missing_variable_is_named() -> None:
    environ = {k: v for k, v in COMPLETE.items() if k != "CNI_NETNS"}
    with pytest.raises(BadEnvironment, match=r"^ADD requires CNI_NETNS; "):
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
        # the kernel replaces it by a number, and the undo would look for another name
        pytest.param("hpn%d", "'%'"),
        pytest.param("%", "'%'"),
        *((name, "'all', 'default' and 'bonding_masters' are the kernel's") for name in NAMES_OF_FILES),
        ("netà", "byte a0"),
        ("\u0420rail", "byte a0"),  # a Cyrillic letter
    ],
)
def test_bad_ifname(ifname: str, why: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        spec.check_environment(Request(COMPLETE | {"CNI_IFNAME": ifname}))
    assert refused.value.msg.startswith(f"CNI_IFNAME={ifname!r} cannot name an interface: ")
    assert why in refused.value.msg


@pytest.mark.parametrize("ifname", [*NAMES_OF_FILES, "netà"])
def test_del_of_a_name_that_only_the_kernel_refuses(ifname: str) -> None:
    """libcni accepts it, so the runtime sends a DEL after the failed ADD, and must be able to delete the pod."""
    spec.check_environment(Request(COMPLETE | {"CNI_COMMAND": "DEL", "CNI_IFNAME": ifname}))


def test_an_altname_may_be_any_of_them() -> None:
    for name in (*NAMES_OF_FILES, "netà"):
        assert spec.bad_ifname(name, spec.ALTNAME) == ""


def test_an_ifname_without_bytes() -> None:
    """JSON can have a lone surrogate."""
    assert spec.bad_ifname("\ud800") == "no '/', ':', '%', white space or control characters"


def test_empty_ifname() -> None:
    assert spec.bad_ifname("") == "1 to 15 bytes"


@pytest.mark.parametrize(
    "ifname", ["a", "hpn0", "a" * 15, "é" * 7 + "x", "a.b", "...", "eth0.100", "-a"]
)  # 15 bytes are fine in any alphabet; a dot is a VLAN's
def test_good_ifname(ifname: str) -> None:
    assert spec.bad_new_ifname(ifname) == ""
    spec.check_environment(Request(COMPLETE | {"CNI_IFNAME": ifname}))
