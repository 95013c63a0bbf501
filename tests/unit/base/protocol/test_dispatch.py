"""From request to reply: at most one document, with the right error."""

import errno
import json
from contextlib import suppress
from typing import Any

import pytest

from base.protocol import errors
from base.protocol.dispatch import answer
from base.protocol.errors import CniError, DelegateError, InterfaceExists, IoFailure, UnsupportedField, doing
from base.protocol.result import Interface, Result
from base.protocol.spec import Json, Reply, Request

ENVIRON = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/n", "CNI_IFNAME": "hpn0", "CNI_PATH": "/p"}
SUPPORTED = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
VERBS = ["ADD", "DEL", "CHECK", "GC", "STATUS"]


def ask(command: str, outcome: Any = None, conf: Any = None, **environ: str) -> Reply:
    """The reply if every command has this outcome: an exception is raised, anything else returned."""

    def work(request: Request, conf: Json, log: list[str]) -> Result | None:
        log.append(f"{request.command} of {conf['name']}")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    conf = {"cniVersion": "1.1.0", "name": "rail0"} if conf is None else conf
    stdin = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
    return answer(Request(ENVIRON | {"CNI_COMMAND": command} | environ, stdin), dict.fromkeys(VERBS, work))


def error_of(reply: Reply) -> dict[str, Any]:
    assert reply.exit_code == 1
    document = json.loads(reply.stdout)
    assert document.keys() <= {"cniVersion", "code", "msg", "details"}
    assert {"cniVersion", "code", "msg"} <= document.keys()
    assert reply.stdout.endswith("}\n")
    return document


def subclasses(of: type[CniError]) -> list[type[CniError]]:
    return [found for direct in of.__subclasses__() for found in (direct, *subclasses(direct))]


# SPEC 1.1.0, "Error", and libcni's types.go for 8.
SPECIFIED = {1, 2, 3, 4, 5, 6, 7, 8, 11, 50, 51}


def test_every_error_has_a_code_of_its_own() -> None:
    # A class with its parent's code differs for us only, not for the runtime.
    classes = [c for c in subclasses(CniError) if c.__module__ == errors.__name__ and "code" in vars(c)]
    codes = [c.code for c in classes]
    assert len(classes) > 15
    assert len(set(codes)) == len(codes), codes
    assert CniError.code not in codes
    assert {code for code in codes if code < 100} <= SPECIFIED
    assert all(code < 999 for code in codes)


def test_every_error_says_what_it_means() -> None:
    assert [c.__name__ for c in subclasses(CniError) if not c.__doc__] == []


def test_result_in_the_version_asked_for() -> None:
    result = Result((Interface("hpn0", mtu=1500),))
    reply = ask("ADD", result, {"cniVersion": "0.4.0", "name": "rail0"})
    assert reply == Reply('{"cniVersion":"0.4.0","interfaces":[{"name":"hpn0"}],"dns":{}}\n', log=("ADD of rail0",))
    assert json.loads(ask("ADD", result).stdout) == {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "hpn0", "mtu": 1500}],
    }


@pytest.mark.parametrize("command", ["DEL", "CHECK", "GC", "STATUS"])
def test_no_output_without_a_result(command: str) -> None:
    assert ask(command) == Reply("", 0, (f"{command} of rail0",))


@pytest.mark.parametrize("stdin", [b"", b"garbage", b'{"cniVersion": "9.9"}', b"\xff"])
def test_version_needs_no_stdin(stdin: bytes) -> None:
    reply = answer(Request({"CNI_COMMAND": "VERSION"}, stdin), {})
    assert (reply.exit_code, reply.log) == (0, ())
    assert json.loads(reply.stdout) == {"cniVersion": "1.1.0", "supportedVersions": SUPPORTED}


@pytest.mark.parametrize(
    ("command", "conf", "environ", "code", "version"),
    [
        ("ADD", b"", {}, 6, "1.1.0"),
        ("ADD", b"[]", {}, 6, "1.1.0"),
        ("ADD", b"", {"CNI_IFNAME": ""}, 4, "1.1.0"),  # the environment first
        ("NONE", b"", {}, 4, "1.1.0"),
        ("ADD", {"name": "rail0"}, {}, 1, "1.1.0"),  # a version that is not supported: the answer is in our newest one
        ("ADD", {"cniVersion": "9.9", "name": "rail0"}, {}, 1, "1.1.0"),
        ("GC", {"cniVersion": "1.0.0", "name": "rail0"}, {}, 1, "1.1.0"),
        ("CHECK", {"cniVersion": "0.3.1", "name": "rail0"}, {}, 1, "1.1.0"),
        ("ADD", {"cniVersion": "0.4.0"}, {}, 7, "0.4.0"),  # no name, and the version is known by now
        ("ADD", {"cniVersion": "0.4.0", "name": "a/b"}, {}, 7, "0.4.0"),
        ("DEL", {"cniVersion": "0.3.1", "name": ""}, {}, 7, "0.3.1"),
    ],
)
def test_refused_before_any_command(command: str, conf: Any, environ: dict[str, str], code: int, version: str) -> None:
    reply = ask(command, AssertionError("was run"), conf, **environ)
    error = error_of(reply)
    assert (error["code"], error["cniVersion"]) == (code, version)
    assert reply.log == ()


def test_error_document() -> None:
    reply = ask("ADD", InterfaceExists("hpn0 is there"), {"cniVersion": "0.3.1", "name": "rail0"})
    assert reply.stdout == '{"cniVersion":"0.3.1","code":100,"msg":"hpn0 is there"}\n'
    assert reply.log == ("ADD of rail0",)  # no traceback for what was meant


def test_notes_become_details() -> None:
    error = UnsupportedField("mtuu 9000", "details given")
    error.add_note("while adding")
    assert error_of(ask("ADD", error)) == {
        "cniVersion": "1.1.0",
        "code": 2,
        "msg": "mtuu 9000",
        "details": "details given; while adding",
    }


def test_a_delegates_code_is_passed_on() -> None:
    assert error_of(ask("ADD", DelegateError(11, "busy", "d"))) == {
        "cniVersion": "1.1.0",
        "code": 11,
        "msg": "busy",
        "details": "d",
    }


@pytest.mark.parametrize(
    ("error", "code", "msg"),
    [
        (OSError(errno.EBUSY, "Device or resource busy"), 11, "Device or resource busy"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), 11, "Resource temporarily unavailable"),
        (PermissionError(errno.EPERM, "Operation not permitted", "/proc/x"), 105, "Operation not permitted: /proc/x"),
        (OSError("no number"), 105, "no number"),
    ],
)
def test_os_error(error: OSError, code: int, msg: str) -> None:
    with suppress(OSError), doing("adding address 10.0.0.1/24"), doing("talking to the kernel"):
        raise error
    reply = ask("ADD", error)
    assert error_of(reply) == {
        "cniVersion": "1.1.0",
        "code": code,
        "msg": msg,
        "details": "while talking to the kernel; while adding address 10.0.0.1/24",
    }
    assert reply.log == ("ADD of rail0",)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize(
    "error",
    [
        DelegateError(11, "lease not found", "not found"),
        DelegateError(11, "open /var/lib/cni/networks/x: no such file or directory"),
        OSError(errno.EINVAL, "Invalid argument (Device not found)"),
        IoFailure("/not found/x: Permission denied"),
        ValueError("not found"),
    ],
)
def test_no_error_of_a_del_passes_for_success(error: Exception, command: str) -> None:
    """containerd's go-cni ignores an error of DEL that has these words, and forgets the attachment.

    It ignores Go's text for ENOENT only if the pod has no namespace any more."""
    error.add_note("while deleting what was not found: no such file or directory")
    reply = ask(command, error)
    for words in ("not found", "no such file or directory"):
        assert (words in reply.stdout) == (command == "ADD")
    assert error_of(reply)["msg"]


def test_io_failure_is_no_kernels_refusal() -> None:
    assert error_of(ask("DEL", IoFailure("disk full")))["code"] == 5


@pytest.mark.parametrize("command", VERBS)
def test_a_bug_is_one_document_and_a_traceback_in_the_log(command: str) -> None:
    reply = ask(command, ZeroDivisionError("by zero"))
    assert error_of(reply) == {
        "cniVersion": "1.1.0",
        "code": 999,
        "msg": "internal error: ZeroDivisionError: by zero",
    }
    log = "".join(reply.log)
    assert "Traceback" in log
    assert __file__ in log
    assert log.endswith("ZeroDivisionError: by zero\n")


def test_a_result_that_is_no_json_is_a_bug() -> None:
    assert error_of(ask("ADD", Result(dns={"x": object()})))["code"] == 999


def test_what_no_terminal_could_show_is_escaped() -> None:
    reply = ask("ADD", InterfaceExists("bytes \udcff, a line\nend and \u00e9"))
    assert reply.stdout.isascii()
    assert reply.stdout.count("\n") == 1
    assert error_of(reply)["msg"] == "bytes \udcff, a line\nend and \u00e9"


def test_doing_adds_to_what_passes_through() -> None:
    with pytest.raises(InterfaceExists) as e, doing("a"):
        raise InterfaceExists("x", "first")
    assert e.value.details == "first; while a"
    assert e.value.msg == "x"
