"""The log's lines: their members for the attachment and the caller's trace, and their format."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.base.state.test_log import REQUEST, run, written
from unit.ctl.test_inspect import VF, save

from base.protocol.spec import Key, Request

pytestmark = pytest.mark.usefixtures("node_file")
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OURS = replace(VF, key=Key("c1", "hpn0"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPN_STATE_DIR", f"{tmp_path}/state")


def conf(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"logFile": str(tmp_path / "log"), **more}


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_the_attachment(tmp_path: Path, command: str) -> None:
    save(tmp_path / "state", OURS)
    run(conf(tmp_path, logLevel="debug"), REQUEST.but(CNI_COMMAND=command))
    asked, warning, done = written(tmp_path / "log")
    assert (done["pci"], done["rdma"]) == ("0000:3b:10.1", "mlx5_4,mlx5_5")
    assert not {"pci", "rdma"} & (asked.keys() | warning.keys())


@pytest.mark.parametrize(
    "asked",
    [{"deviceID": "0000:3b:10.2"}, {"deviceID": "0000:00:00.0", "runtimeConfig": {"deviceID": "0000:3b:10.2"}}],
)
def test_one_that_does_not_come_about(tmp_path: Path, asked: dict[str, Any]) -> None:
    run(conf(tmp_path, **asked), recovered=False, fails="no")
    (line,) = written(tmp_path / "log")
    assert (line["pci"], line["code"]) == ("0000:3b:10.2", 999)


@pytest.mark.parametrize("wrong", [{"deviceID": 7}, {"runtimeConfig": 7}, {"ipam": 7}])
def test_a_broken_configuration(tmp_path: Path, wrong: dict[str, Any]) -> None:
    run(conf(tmp_path, **wrong), REQUEST.but(CNI_COMMAND="DEL"), recovered=False)
    (line,) = written(tmp_path / "log")
    assert (line["message"], line.keys() & {"pci", "rdma"}) == ("done", set())


@pytest.mark.parametrize("command", ["ADD", "DEL"])
@pytest.mark.parametrize(
    "strange",
    [{"link": {"device": ["x"], "rdma_devs": []}}, {"kind": "?"}, {"link": ["x"]}, {"link": {"rdma_devs": [7]}}],
)
def test_a_strange_record(tmp_path: Path, strange: dict[str, Any], command: str) -> None:
    """DEL reads it before it begins."""
    save(tmp_path / "state", replace(OURS, **strange))
    assert run(conf(tmp_path), REQUEST.but(CNI_COMMAND=command)) == ["undid something"]
    assert written(tmp_path / "log")[-1]["message"] == "done"


# https://www.w3.org/TR/trace-context/#traceparent-header
@pytest.mark.parametrize("trace", [TRACE, f"01{TRACE[2:]}", f"cc{TRACE[2:]}-what-the-future-will-be-like"])
def test_trace(tmp_path: Path, trace: str) -> None:
    run(conf(tmp_path, logLevel="debug"), REQUEST.but(TRACEPARENT=trace))
    assert [line["traceparent"] for line in written(tmp_path / "log")] == [trace] * 3


@pytest.mark.parametrize(
    "trace",
    [
        *("", "00", TRACE.upper(), f"ff{TRACE[2:]}", f"{TRACE}-x", f"{TRACE}\n", f" {TRACE}", f"01{TRACE[2:]}x"),
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        f"01{TRACE[2:]}-\x1b[2J",
        f"01{TRACE[2:]}-{'x' * 100_000}",
    ],
)
def test_no_trace(tmp_path: Path, trace: str) -> None:
    run(conf(tmp_path), REQUEST.but(TRACEPARENT=trace))
    assert [line.keys() & {"traceparent"} for line in written(tmp_path / "log")] == [set()] * 2


def test_words(tmp_path: Path) -> None:
    save(tmp_path / "state", OURS)
    asked = REQUEST.but(CNI_ARGS="K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0", TRACEPARENT=TRACE)
    run(conf(tmp_path, logFormat="text"), asked)
    warning, done = (tmp_path / "log").read_text().splitlines()
    of = f"command=ADD network=rail0 container=c1 ifname=hpn0 pod=ns/web-0 traceparent={TRACE}"
    assert warning.split(" ", 1)[1] == f'level=warning {of} message="undid something"'
    about, _, took = done.split(" ", 1)[1].rpartition("=")
    assert about == f"level=info {of} message=done pci=0000:3b:10.1 rdma=mlx5_4,mlx5_5 duration_ms"
    assert float(took) >= 0


@pytest.mark.parametrize("text", ["a\nb", 'say "x" = y', "\x1b[2J", "\udcff", "\u2028", "", "a\\b", "x=y"])
def test_words_are_one_line(tmp_path: Path, text: str) -> None:
    """A quoted value has JSON's form, so that no part of it looks like another member."""
    run(conf(tmp_path, logFormat="text", logLevel="error"), REQUEST.but(CNI_ARGS=f"K8S_POD_NAME={text}"), fails=text)
    (line,) = (tmp_path / "log").read_text().splitlines() if text else [" level=error"]
    assert line.isascii()
    assert line.isprintable()
    if text:
        members = dict(word.split("=", 1) for word in shlex.split(line.replace('\\"', "'").replace("\\", "/")))
        assert members.keys() == {
            *("time", "level", "command", "network", "container", "ifname", "message", "duration_ms", "code"),
            *({"pod"} if text else set()),
        }


@pytest.mark.parametrize("form", ["json", "text"])
def test_on_stderr(tmp_path: Path, form: str) -> None:
    """The lines replace the usual warnings, and no file of that name is made."""
    warning, done = run({"logFile": "stderr", "logFormat": form})
    if form == "json":
        assert [json.loads(line)["level"] for line in (warning, done)] == ["warning", "info"]
    else:
        assert [line.split()[1] for line in (warning, done)] == ["level=warning", "level=info"]
    assert not Path("stderr").exists()
    assert run({"logFile": "stderr", "logLevel": "error"}) == []


@pytest.mark.parametrize("key", ["logLevel", "logFormat"])
@pytest.mark.parametrize("value", ["no", 7, None, ["json"]])
def test_what_it_does_not_know(tmp_path: Path, key: str, value: object) -> None:
    """ADD refuses it; a DEL has no log."""
    assert run(conf(tmp_path, **{key: value}), Request(REQUEST.environ, b"{}")) == ["undid something"]
    assert not (tmp_path / "log").exists()
