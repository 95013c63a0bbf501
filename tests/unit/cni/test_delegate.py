"""IPAM plugins that are separate programs: found on CNI_PATH, run, and parsed."""

import json
import os
from collections.abc import Callable
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from base.protocol.errors import AddressConflict, DelegateError, DelegateFailed, InvalidConfig
from base.protocol.result import Ip, Result
from base.protocol.spec import Request
from cni.features import delegate

RESULT = '{"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}'
PARSED = Result(ips=(Ip(ip_interface("10.0.0.2/24")),))

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Write a shell script into a directory of CNI_PATH."""

    def make(script: str, folder: str = "a", name: str = "plug", mode: int = 0o755) -> Path:
        program = tmp_path / folder / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(mode)
        return program

    return make


@pytest.fixture
def request_in(tmp_path: Path) -> Request:
    path = ":".join(str(tmp_path / folder) for folder in ("absent", "a", "b"))
    return Request({"CNI_COMMAND": "ADD", "CNI_PATH": path, "PATH": os.environ["PATH"], "OTHER": "x y"}, b'{"in": 1}')


def test_result(install: Install, request_in: Request) -> None:
    install(f"cat >/dev/null; echo '{RESULT}'")
    assert delegate.call("plug", request_in, {}) == PARSED


@pytest.mark.parametrize("said", ["", "echo", "printf ' \\n\\t'"])
def test_nothing_printed(install: Install, request_in: Request, said: str) -> None:
    install(f"cat >/dev/null; {said}")
    assert delegate.call("plug", request_in, {}) is None


def test_environment_and_stdin_are_passed_whole(install: Install, request_in: Request, tmp_path: Path) -> None:
    install(f"env -0 >{tmp_path}/env; cat >{tmp_path}/stdin")
    stdin = b'{"name": "\xc3\xa9", "fill": "' + b"x" * 200_000 + b'"}'  # more than a pipe holds
    request = request_in.but(stdin=stdin)
    delegate.call("plug", request, {})
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().split("\0") if line)
    added = {"HPN_DELEGATED": "1"}  # so that it does not ask itself, should it be hpn
    assert {k: v for k, v in seen.items() if k not in ("PWD", "SHLVL", "_")} == {**request.environ, **added}
    assert (tmp_path / "stdin").read_bytes() == stdin


def test_command_overridden(install: Install, request_in: Request, tmp_path: Path) -> None:
    install(f'cat >/dev/null; echo "$CNI_COMMAND $OTHER" >{tmp_path}/said')
    delegate.call("plug", request_in.but(CNI_COMMAND="DEL"), {})
    assert (tmp_path / "said").read_text() == "DEL x y\n"
    assert request_in.command == "ADD"


def test_stdin_need_not_be_read(install: Install, request_in: Request) -> None:
    install(f"exec <&-; echo '{RESULT}'")
    assert delegate.call("plug", request_in.but(stdin=b"x" * 200_000), {}) == PARSED


def test_stderr_is_passed_through(install: Install, request_in: Request, capfd: pytest.CaptureFixture[str]) -> None:
    install(f"cat >/dev/null; echo 'a word to the log' >&2; echo '{RESULT}'")
    assert delegate.call("plug", request_in, {}) == PARSED
    out, err = capfd.readouterr()
    assert (out, err) == ("", "a word to the log\n")


def test_first_of_cni_path(install: Install, request_in: Request, tmp_path: Path) -> None:
    install(f"cat >/dev/null; echo b >>{tmp_path}/ran", folder="b")
    install(f"cat >/dev/null; echo a >>{tmp_path}/ran", folder="a")
    delegate.call("plug", request_in, {})
    assert (tmp_path / "ran").read_text() == "a\n"


@pytest.mark.parametrize("kind", ["not executable", "directory"])
def test_what_is_no_program_is_passed_over(install: Install, request_in: Request, tmp_path: Path, kind: str) -> None:
    install(f"cat >/dev/null; echo b >{tmp_path}/ran", folder="b")
    if kind == "directory":
        (tmp_path / "a" / "plug").mkdir(parents=True)
    else:
        install("exit 9", folder="a", mode=0o644)
    delegate.call("plug", request_in, {})
    assert (tmp_path / "ran").read_text() == "b\n"


def failure(request: Request, ipam: str = "plug") -> DelegateFailed:
    with pytest.raises(DelegateFailed) as e:
        delegate.call(ipam, request, {})
    assert e.value.code == 106
    return e.value


def test_missing(request_in: Request) -> None:
    path = request_in.environ["CNI_PATH"]
    assert failure(request_in).msg == f"ipam.type 'plug' is not a program in CNI_PATH='{path}'; install it there"


@pytest.mark.parametrize("path", ["", ":", "::"])  # never the working directory
def test_empty_cni_path(install: Install, request_in: Request, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(install("exit 0").parent)
    assert failure(request_in.but(CNI_PATH=path)).msg == (
        f"ipam.type 'plug' is not a program in CNI_PATH='{path}'; install it there"
    )


def test_not_executable(install: Install, request_in: Request) -> None:
    install("exit 0", mode=0o644)
    assert "is not a program in CNI_PATH=" in failure(request_in).msg


def test_cannot_be_run(install: Install, request_in: Request) -> None:
    program = install("")
    program.write_text("#!/nonexistent/interpreter\n")
    assert failure(request_in).msg == f"IPAM plugin {program} cannot be run: No such file or directory"
    program.write_bytes(b"\x7fELF")
    assert failure(request_in).msg == f"IPAM plugin {program} cannot be run: Exec format error"
    program.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xf3\0" + bytes(44))
    here = os.uname().machine
    assert failure(request_in).msg == (
        f"IPAM plugin {program} cannot be run: it is built for riscv64, and this node is {here}; "
        f"install the one for {here}"
    )


@pytest.mark.parametrize("name", ["../a/plug", "/bin/true", "a/plug", ".", ".."])
def test_a_path_is_no_name(install: Install, request_in: Request, name: str) -> None:
    install("exit 0")
    with pytest.raises(InvalidConfig) as e:
        delegate.call(name, request_in, {})
    assert e.value.msg == f"ipam.type {name!r} is not a plugin's name; name a program in CNI_PATH"


@pytest.mark.parametrize(
    ("document", "code", "msg", "details"),
    [
        ('{"code": 11, "msg": "busy", "details": "d"}', 11, "plug: busy", "d"),
        ('{"cniVersion": "0.4.0", "code": 102, "msg": "taken"}', 102, "plug: taken", ""),
        ('{"code": 100}', 100, "plug: ", ""),
        ('{"code": 100, "msg": "m", "details": null}', 100, "plug: m", ""),
        ('{"code": "7", "msg": "m"}', 7, "plug: m", ""),
    ],
)
def test_own_error(install: Install, request_in: Request, document: str, code: int, msg: str, details: str) -> None:
    install(f"cat >/dev/null; echo '{document}'; exit 1")
    with pytest.raises(DelegateError) as e:
        delegate.call("plug", request_in, {})
    assert (e.value.code, e.value.msg, e.value.details) == (code, msg, details)


@pytest.mark.parametrize(
    ("script", "msg", "details"),
    [
        ("kill -KILL $$", "IPAM plugin plug ended with signal 9 and no CNI error", ""),
        ("echo part; kill -TERM $$", "IPAM plugin plug ended with signal 15 and no CNI error", "part\n"),
        ("exit 3", "IPAM plugin plug ended with status 3 and no CNI error", ""),
        ("echo oops; exit 3", "IPAM plugin plug ended with status 3 and no CNI error", "oops\n"),
        ("echo '[]'; exit 1", "IPAM plugin plug ended with status 1 and no CNI error", "[]\n"),
        ("echo null; exit 1", "IPAM plugin plug ended with status 1 and no CNI error", "null\n"),
        # an error without a code is invalid
        ("""echo '{"msg": "x"}'; exit 1""", "IPAM plugin plug ended with status 1 and no CNI error", '{"msg": "x"}\n'),
        (
            """echo '{"code": [5]}'; exit 1""",
            "IPAM plugin plug ended with status 1 and no CNI error",
            '{"code": [5]}\n',
        ),
        pytest.param(
            """echo '{"code": Infinity}'; exit 1""",
            "IPAM plugin plug ended with status 1 and no CNI error",
            '{"code": Infinity}\n',
        ),
        (
            "head -c 900 /dev/zero | tr '\\0' x; exit 2",
            "IPAM plugin plug ended with status 2 and no CNI error",
            "x" * 500,
        ),
    ],
)
def test_end_without_an_error(install: Install, request_in: Request, script: str, msg: str, details: str) -> None:
    install(f"cat >/dev/null; {script}")
    error = failure(request_in)
    assert (error.msg, error.details) == (msg, details)


@pytest.mark.parametrize(
    "said",
    ["garbage", "[]", "5", '{"ips": 5}', '{"ips": [{"address": "x"}]}', '{"ips": []} {"ips": []}', "\\377"],
)
def test_garbage_on_stdout(install: Install, request_in: Request, said: str) -> None:
    install(f"cat >/dev/null; printf '{said}'")
    error = failure(request_in)
    assert error.msg.startswith("IPAM plugin plug printed no result: ")
    assert error.details == said.replace("\\377", "\ufffd")


def test_given_programs_come_first(install: Install, request_in: Request) -> None:
    install("exit 9")
    seen: list[Any] = []

    def ours(request: Request, log: list[str]) -> Result | None:
        seen.append(json.loads(request.stdin))
        log.append("a word")
        return PARSED

    log = list[str]()
    assert delegate.call("plug", request_in, {"plug": ours}, log) == PARSED
    assert (seen, log) == ([{"in": 1}], ["a word"])


def test_a_given_one_s_error_is_passed_on_as_a_programs(request_in: Request) -> None:
    def ours(_request: Request, _log: list[str]) -> Result | None:
        raise AddressConflict("in use", "widen it")

    with pytest.raises(DelegateError) as e:
        delegate.call("plug", request_in, {"plug": ours})
    assert (e.value.code, e.value.msg, e.value.details) == (104, "plug: in use", "widen it")
