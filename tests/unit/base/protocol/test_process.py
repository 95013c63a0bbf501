"""The programs as processes, as a runtime or a person sees them."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
CNI = [sys.executable, "-m", "cni"]
CTL = [sys.executable, "-m", "ctl"]
IPAM = [sys.executable, "-m", "ipam"]
PLUGINS = pytest.mark.parametrize("program", [CNI, CTL, IPAM], ids=["cni", "ctl", "ipam"])


def run(program: Sequence[str | Path], stdin: Any = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program with only these variables; ``stdin`` is bytes, or a descriptor as in subprocess."""
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | environ
    return subprocess.run(program, capture_output=True, env=variables, cwd="/", check=False, **given)


def document(done: subprocess.CompletedProcess[bytes]) -> Any:
    """The only JSON document, on stdout."""
    assert done.stdout.count(b"\n") == 1, done
    return json.loads(done.stdout)


@PLUGINS
@pytest.mark.parametrize("stdin", [b"", b"garbage", b'{"cniVersion": "0.4.0"}', subprocess.DEVNULL])
def test_version(program: list[str], stdin: Any) -> None:
    done = run(program, stdin, CNI_COMMAND="VERSION")
    assert document(done) == {"cniVersion": "1.1.0", "supportedVersions": VERSIONS}
    assert (done.returncode, done.stderr) == (0, b"")


@PLUGINS
def test_error(program: list[str]) -> None:
    done = run(program, b'{"cniVersion": "0.4.0", "name": "n"}', CNI_COMMAND="ADD")
    assert document(done) == {
        "cniVersion": "1.1.0",
        "code": 4,
        "msg": "ADD requires CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME; set each to a value",
    }
    assert (done.returncode, done.stderr) == (1, b"")


@PLUGINS
def test_nothing_printed_where_there_is_no_result(program: list[str], tmp_path: Path) -> None:
    conf = {"cniVersion": "1.1.0", "name": "n", "type": "hpn", "ipam": {"type": "hpn-ipam"}}
    if program is CNI:
        del conf["ipam"]
    done = run(
        program,
        json.dumps(conf).encode(),
        CNI_COMMAND="DEL",
        CNI_CONTAINERID="c1",
        CNI_IFNAME="hpn0",
        HPN_STATE_DIR=f"{tmp_path}",
    )
    assert (done.stdout, done.returncode, done.stderr) == (b"", 0, b"")


def test_without_the_program_inside_ipam_is_looked_for(tmp_path: Path) -> None:
    conf = {"cniVersion": "1.1.0", "name": "n", "ipam": {"type": "hpn-ipam"}}
    done = run(
        CNI,
        json.dumps(conf).encode(),
        CNI_COMMAND="DEL",
        CNI_CONTAINERID="c1",
        CNI_IFNAME="hpn0",
        CNI_PATH="/absent",
        HPN_STATE_DIR=f"{tmp_path}",
    )
    assert document(done)["code"] == 106
    assert done.returncode == 1


@PLUGINS
def test_a_closed_stdin_is_an_empty_one(program: list[str]) -> None:
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *program]
    environ = {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "hpn0"}
    assert document(run(closed, CNI_COMMAND="VERSION"))["supportedVersions"] == VERSIONS
    assert document(run(closed, CNI_COMMAND="DEL", **environ))["code"] == 6


@PLUGINS
def test_a_stdin_that_cannot_be_read(program: list[str]) -> None:
    with Path(os.devnull).open("wb") as unreadable:
        done = run(program, unreadable, CNI_COMMAND="DEL", CNI_CONTAINERID="c1", CNI_IFNAME="hpn0")
    assert document(done)["code"] == 5
    assert done.returncode == 1


@PLUGINS
def test_a_variable_that_is_no_text(program: list[str]) -> None:
    named = ["sh", "-c", 'CNI_IFNAME=$(printf "\\377") exec "$@"', "sh", *program]
    done = run(named, b"{}", CNI_COMMAND="DEL", CNI_CONTAINERID="c1")
    assert document(done)["code"] == 4
    assert "CNI_IFNAME" in document(done)["msg"]


@PLUGINS
@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "xx_XX"])
def test_any_locale(program: list[str], locale: str) -> None:
    done = run(
        program, '{"cniVersion": "1.1.0", "name": "é"}'.encode(), CNI_COMMAND="DEL", CNI_CONTAINERID="c1",
        CNI_IFNAME="hpn0", LC_ALL=locale, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0",
    )  # fmt: skip
    assert document(done)["msg"].startswith("name 'é' is not a network name")


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help(arguments: list[str]) -> None:
    done = run([*CTL, *arguments])
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"hpn 0.1.0: a CNI plugin")
    assert b"CNI protocol versions supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n" in done.stdout


@pytest.mark.parametrize("command", ["agent", "node", "list"])
def test_help_of_a_command(command: str) -> None:
    of_it, its_own = run([*CTL, "help", command]), run([*CTL, command, "--help"])
    assert (of_it.returncode, of_it.stdout, of_it.stderr) == (0, its_own.stdout, its_own.stderr)
    assert (of_it.stdout + of_it.stderr).startswith(f"usage: hpn {command} ".encode())


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_for_people(word: str) -> None:
    done = run([*CTL, word])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hpn 0.1.0\n", b"")


@pytest.mark.parametrize("arguments", [["frobnicate"], ["help", "me"], ["--frob"], [""]])
def test_unknown_command(arguments: list[str]) -> None:
    done = run([*CTL, *arguments])
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode() == f"hpn: {' '.join(arguments)!r} is not a command; see: hpn help\n"


def test_the_version_is_the_packages() -> None:
    with (ROOT / "pyproject.toml").open("rb") as f:
        version = tomllib.load(f)["project"]["version"]
    assert run([*CTL, "version"]).stdout.decode() == f"hpn {version}\n"


def called(name: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run the one program under one of its names, as the launcher does."""
    return run(CTL, stdin, HPN_ARGV0=f"/opt/cni/bin/{name}", **environ)


@pytest.mark.parametrize("name", ["hpn", "hpn-ipam"])
def test_both_names_answer_version(name: str) -> None:
    done = called(name, CNI_COMMAND="VERSION")
    assert document(done) == {"cniVersion": "1.1.0", "supportedVersions": VERSIONS}


def test_the_name_decides_which_plugin_answers(tmp_path: Path) -> None:
    """CHECK without prevResult: the IPAM plugin checks its lease, the main plugin needs prevResult."""
    conf = {
        "cniVersion": "1.1.0",
        "name": "n",
        "ipam": {"type": "hpn-ipam", "subnet": "10.0.0.0/24"},
    }
    environ = {"CNI_COMMAND": "CHECK", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/n", "CNI_IFNAME": "hpn0"}
    environ["HPN_STATE_DIR"] = f"{tmp_path}"
    stdin = json.dumps(conf).encode()
    alone = document(called("hpn-ipam", stdin, **environ))
    whole = document(called("hpn", stdin, **environ))
    assert alone["code"] == 107
    assert (whole["code"], whole["msg"]) == (
        7,
        "prevResult is missing; CHECK compares the pod with ADD's result",
    )


def test_ipam_alone_attaches_and_releases(tmp_path: Path) -> None:
    conf = {
        "cniVersion": "1.0.0",
        "name": "n",
        "ipam": {"type": "hpn-ipam", "subnet": "10.0.0.0/24"},
    }
    environ = {"CNI_CONTAINERID": "c1", "CNI_NETNS": "/n", "CNI_IFNAME": "hpn0", "HPN_STATE_DIR": f"{tmp_path}"}
    stdin = json.dumps(conf).encode()
    assert document(called("hpn-ipam", stdin, CNI_COMMAND="ADD", **environ)) == {
        "cniVersion": "1.0.0",
        "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}],
    }
    assert called("hpn-ipam", stdin, CNI_COMMAND="DEL", **environ).stdout == b""


SHOW = "import json; from base.protocol.dispatch import environment; print(json.dumps(environment()))"


@pytest.mark.parametrize("given", [{}, {"LC_CTYPE": "C"}, {"LD_LIBRARY_PATH": "/a"}, {"X": "a=b\nc", "Y": "\udcff"}])
def test_environment(given: dict[str, str]) -> None:
    """LC_CTYPE, which Python sets (PEP 538), is not passed on."""
    shown = json.loads(run([sys.executable, "-c", SHOW], **given).stdout)
    assert shown == {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | given
