"""A refused request gets a code, a message with key, value and remedy, and no traceback."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from netns.bad_requests.circumstances import CIRCUMSTANCES
from netns.bad_requests.configuration import CONFIGURATION, IPAM, MAC
from netns.bad_requests.environment import ENVIRONMENT, STDIN, VERSION
from netns.bad_requests.form import SCRIPT, Bad
from support.topology import Host, Pod

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "environment": ENVIRONMENT,
    "stdin": STDIN,
    "version": VERSION,
    "conf": CONFIGURATION,
    "mac": MAC,
    "ipam": IPAM,
    "circumstances": CIRCUMSTANCES,
}


@pytest.mark.parametrize(
    "bad", [pytest.param(bad, id=f"{name}: {bad.why}") for name, table in SECTIONS.items() for bad in table]
)
def test_refused_without_a_trace(host: Host, pod: Pod, bad: Bad) -> None:
    with ExitStack() as stack:
        environ = dict(bad.environ) | ((bad.setup and bad.setup(host, pod, stack)) or {})
        conf = bad.keys if isinstance(bad.keys, bytes) else host.conf(**bad.keys)
        before = host.picture(pod)
        reply = host.call(bad.command, pod, conf, **environ)
        after = host.picture(pod)

    assert reply.exit_code == 1
    assert reply.stdout.count("\n") == 1
    error = json.loads(reply.stdout)
    assert error.keys() <= {"cniVersion", "code", "msg", "details"}
    assert error["cniVersion"] in ("0.3.1", "1.0.0", "1.1.0")
    assert error["code"] == bad.code, (error, reply.log)
    for words in bad.says:
        assert words in error["msg"]
    assert bad.details in error.get("details", "")
    assert after == before


def test_an_error_is_in_the_version_asked_for(host: Host, pod: Pod) -> None:
    for version in ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"):
        assert host.refused("ADD", pod, host.conf(cniVersion=version, mtu=-1))["cniVersion"] == version


def test_everything_that_is_wrong_is_said_at_once(host: Host, pod: Pod) -> None:
    error = host.refused("ADD", pod, host.conf(mtu=-1, mode="fast", mtuu=1))
    assert all(words in error["msg"] + error["details"] for words in ("mtu -1", '"fast"', "mtuu"))


def test_an_ipam_that_failed_to_give_is_asked_to_take_back(host: Host, pod: Pod) -> None:
    """ADD calls the DEL of an IPAM that failed, because it may have died with an allocation (SPEC 1.1.0, section 4)."""
    seen = host.tmp_path / "seen"
    path = host.program("script", f"cat >/dev/null; echo $CNI_COMMAND >> {seen}; [ $CNI_COMMAND = DEL ]")
    assert host.refused("ADD", pod, host.conf(**SCRIPT), CNI_PATH=path)["code"] == 106
    assert seen.read_text().split() == ["ADD", "DEL"]
    assert host.state_files() == set()


def test_where_not_all_can_be_undone_the_record_stays(host: Host, pod: Pod) -> None:
    """If the IPAM plugin refuses both ADD and DEL, the record stays, and the error points to DEL."""
    path = host.program("script", 'cat >/dev/null; echo \'{"code":142,"msg":"away"}\'; exit 1')
    conf = host.conf(**SCRIPT)
    error = host.refused("ADD", pod, conf, CNI_PATH=path)
    assert error["code"] == 142
    assert "DEL" in error.get("details", "")
    assert pod.links() == set()
    assert host.record(pod).exists()
    host.program("script", "cat >/dev/null")
    host.ok("DEL", pod, conf, CNI_PATH=path)
    assert host.state_files() == set()


def hpn_as(name: str, host: Host) -> tuple[str, Path]:
    """Install this program under another name; return its CNI_PATH, and a file with a line for each start.  The fourth
    start ends an endless recursion."""
    starts = host.tmp_path / "starts"
    once_more = f"echo $CNI_COMMAND >> {starts}\n[ $(wc -l < {starts}) -lt 4 ] || exit 9"
    return host.program(name, f"{once_more}\ncd {ROOT} && exec {sys.executable} -m ctl"), starts


@pytest.mark.parametrize("command", ["ADD", "STATUS", "DEL", "GC"])
@pytest.mark.parametrize("name", ["hpn", "rails"])
def test_hpn_never_asks_itself_for_addresses(host: Host, pod: Pod, name: str, command: str) -> None:
    """hpn never calls itself as IPAM, neither by its own name nor by a link.  DEL and GC succeed, since it allocated
    nothing."""
    path, starts = hpn_as(name, host)
    starts.write_text("")
    asked = {"ipam": {"type": name, "subnet": "10.56.0.0/24"}}
    if command == "GC":  # without a list it asks hpn-ipam only
        asked |= {"cni.dev/valid-attachments": []}
    reply = host.call(command, pod, host.conf(**asked), CNI_PATH=path)
    if command in ("DEL", "GC"):
        assert (reply.exit_code, reply.stdout) == (0, "")
    else:
        error = json.loads(reply.stdout)
        assert (error["code"], "did you mean hpn-ipam" in error["msg"]) == (7, True), error
    failed_add = ["ADD", "DEL"] if command == "ADD" else [command]
    assert starts.read_text().split() == ([] if name == "hpn" else failed_add)
    assert (pod.links(), host.state_files()) == (set(), set())
