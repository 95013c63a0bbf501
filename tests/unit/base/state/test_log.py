"""The log that a configuration may request."""

import errno
import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from base.protocol.dispatch import answer
from base.protocol.errors import InterfaceExists, doing
from base.protocol.spec import Config, Request
from base.state import policy
from base.state.log import log_command

pytestmark = pytest.mark.usefixtures("node_file")
REQUEST = Request({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "hpn0"}, b'{"name":"rail0"}')
BUG = "internal error: ValueError: "


def run(conf: dict[str, Any], request: Request = REQUEST, *, recovered: bool = True, fails: str = "") -> list[str]:
    """Run one command that warns; its lines for stderr."""
    lines = ["undid something"] if recovered else []
    with suppress(ValueError), log_command(request, {"name": "rail0", **conf}, lines):
        if fails:
            raise ValueError(fails)
    return lines


def written(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        (None, ["warning", "info"]),
        ("debug", ["debug", "warning", "info"]),
        ("warning", ["warning"]),
        ("error", []),
    ],
)
def test_levels(tmp_path: Path, level: str | None, levels: list[str]) -> None:
    log = tmp_path / "log"
    run({"logFile": str(log)} | ({"logLevel": level} if level else {}))
    lines = written(log)
    assert [line["level"] for line in lines] == levels
    of = {"command": "ADD", "network": "rail0", "container": "c1", "ifname": "hpn0"}
    assert all(line.items() >= of.items() for line in lines)


def test_a_failure_is_an_error_and_passes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(ValueError, match="no"),
        log_command(REQUEST, {"logFile": str(log), "logLevel": "error"}, []),
    ):
        raise ValueError("no")
    (line,) = written(log)
    assert (line["level"], line["message"], line["code"]) == ("error", f"{BUG}no", 999)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EBUSY, "Device or resource busy"),
        PermissionError(errno.EPERM, "Operation not permitted", "/proc/x"),
        InterfaceExists("hpn0 is there"),
        ZeroDivisionError("by zero"),
    ],
)
def test_an_error_is_the_one_that_is_answered(tmp_path: Path, error: Exception) -> None:
    def fails(request: Request, conf: Config, lines: list[str]) -> None:
        with log_command(request, conf, lines), doing("adding an address"):
            raise error

    conf = {"cniVersion": "1.1.0", "name": "rail0", "logFile": str(tmp_path / "log")}
    request = replace(REQUEST.but(CNI_NETNS="/n", CNI_PATH="/p"), stdin=json.dumps(conf).encode())
    answered = json.loads(answer(request, {"ADD": fails}).stdout)
    (line,) = written(tmp_path / "log")
    assert (line["code"], line["message"]) == (answered["code"], f"{answered['msg']}; {answered['details']}")


def test_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(3):
        run({"logFile": str(log), "logLevel": "info"})
    assert len(log.read_text().splitlines()) == 6
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_line(tmp_path: Path) -> None:
    """docs/user/operations.md names these members."""
    log = tmp_path / "log"
    request = REQUEST.but(CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0")
    run({"logFile": str(log), "logLevel": "debug"}, request)
    asked, warning, done = written(log)
    assert datetime.fromisoformat(done["time"]).tzinfo
    assert (asked["message"], asked["stdin"], asked["args"]) == ("asked", '{"name":"rail0"}', request.var("CNI_ARGS"))
    assert (warning["message"], done["message"], done["pod"]) == ("undid something", "done", "ns/web-0")
    assert 0 <= done["duration_ms"] < 1000


@pytest.mark.parametrize("text", ["a\nb", "' $(touch X) #", '"}\n{"', "\x1b[2J", "\udcff", "\u2028", "x" * 100_000])
def test_a_line_is_one_line_of_json(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log"
    request = REQUEST.but(stdin=text.encode(errors="surrogateescape"), CNI_ARGS=f"K8S_POD_NAME={text}")
    run({"logFile": str(log), "logLevel": "debug"}, request, fails=text)
    assert [line["message"] for line in written(log)] == ["asked", "undid something", f"{BUG}{text}"[: 1 << 14]]
    assert max(map(len, log.read_bytes().splitlines())) < 1 << 19


@pytest.mark.parametrize("command", ["STATUS", "CHECK"])
def test_what_changes_nothing_is_not_logged(tmp_path: Path, command: str) -> None:
    """A runtime requests STATUS every few seconds."""
    log = tmp_path / "log"
    asked = REQUEST.but(CNI_COMMAND=command)
    run({"logFile": str(log)}, asked, recovered=False)
    assert log.read_text() == ""
    run({"logFile": str(log)}, asked)
    assert [line["level"] for line in written(log)] == ["warning"]


def test_one_that_cannot_be_written_is_not_in_the_way(tmp_path: Path) -> None:
    path = str(tmp_path / "absent" / "log")
    assert run({"logFile": path})[1:] == [f"logFile {path!r} cannot be written: No such file or directory"]


def test_the_administrators_directory_is_made(tmp_path: Path, node_file: Path) -> None:
    folder = tmp_path / "logs"
    node_file.write_text(json.dumps({"allowedPaths": {"logFile": [str(folder), str(tmp_path / "one.log")]}}))
    run({"logFile": f"{folder}/log"})
    run({"logFile": f"{tmp_path}/one.log"})
    assert (len(written(folder / "log")), folder.stat().st_mode & 0o777) == (2, 0o700)
    assert len(written(tmp_path / "one.log")) == 2


@pytest.mark.parametrize("path", ["log", 7, None])
def test_no_log(path: object) -> None:
    assert run({"logFile": path}) == ["undid something"]


def test_a_file_with_several_names(tmp_path: Path) -> None:
    """Others who can write to an allowed directory could link a file of root's there."""
    secret, log = tmp_path / "secret", tmp_path / "log"
    secret.write_text("precious")
    log.hardlink_to(secret)
    with pytest.raises(OSError, match="several names"):
        policy.place("logFile", str(log), [str(tmp_path)]).open_for_append()
    assert secret.read_text() == "precious"
