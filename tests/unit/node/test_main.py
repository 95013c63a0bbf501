"""The exit status and message of hpn node if it cannot start."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import require

from ctl.daemonset import containers
from node import flags, main
from node.config import DEFAULTS
from node.kubelet.directory import Directory

ROOT = Path(__file__).parents[3]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ctl", "node", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_it_says_what_it_is() -> None:
    for word in ("--version", "-v", "version"):
        done = run(word)
        assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "hpn", "")
    assert run("--help").stdout.startswith("usage: hpn node ")


def test_a_flag_that_it_does_not_know() -> None:
    done = run("--konfig")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hpn node: unrecognized arguments: --konfig")


def test_a_configuration_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text('{"resources": [{"name": "a.b/c", "kind": "vv"}]}')
    done = run("--config", f"{tmp_path}/node.json", "--kubelet-dir", "/nowhere")
    assert (done.returncode, done.stdout) == (78, "")
    assert all(word in done.stderr for word in ("hpn node: ", "node.json", "kind", "vv")), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_dry_run(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    resource = {"name": "a.b/c", "kind": "vf"}
    file.write_text(
        json.dumps({"resources": [resource], "pfs": [{"selectors": {"ifNames": ["nowhere0"]}, "mtu": 9000}]})
    )
    done = run("--dry-run", "--config", f"{file}")
    said = [
        "pfs[0]: this node has no PF that matches its selectors",
        "nothing to change: the node is as the file asks",
    ]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, said, "")
    file.write_text("{}")
    done = run("--dry-run", "--config", f"{file}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.skipif(any(path.exists() for path in DEFAULTS), reason="this machine has a configuration")
def test_no_configuration() -> None:
    done = run("--kubelet-dir", "/nowhere")
    assert done.returncode == 78
    assert all(f"{path}" in done.stderr for path in DEFAULTS)


@pytest.mark.parametrize("folder", ["/var/lib/kubelet", f"/{'k' * 59}"])
@pytest.mark.parametrize("name", ["a/b", f"{'p' * 200}.example.com/{'n' * 63}"])
def test_a_sockets_path_is_never_too_long(folder: str, name: str) -> None:
    loop = asyncio.new_event_loop()
    directory = Directory(loop, Path(folder, "plugins_registry"), lambda: None)
    path = directory.socket(name)
    assert len(str(path.with_name(f".{path.name}"))) <= 107
    assert path != directory.socket(f"{name}x")
    directory.close()
    loop.close()


# In a user namespace, whose limit is its own.
WITHOUT_INSTANCES = """
import asyncio, sys
from pathlib import Path
from node.dra.claims.status import Status
from node.kubelet.directory import Directory
from node.log import Topics

limit, folder = Path("/proc/sys/user/max_inotify_instances"), Path(sys.argv[1])
limit.write_text("0")
loop = asyncio.new_event_loop()
Status(loop, Topics(), lambda due: ("", [])).close()
directory = Directory(loop, folder / "registry", loop.stop)
limit.write_text("9")
loop.run_forever()  # until the attempt that follows
(folder / "registry").mkdir()
loop.run_forever()  # until the event
print(directory.claim())
directory.close()
"""


def test_no_inotify_instance_is_left(tmp_path: Path) -> None:
    """hpn node goes on, and watches as soon as it can; also when SIGHUP brings the first claims."""
    if os.geteuid():
        require("unit", "root, who owns / in the user namespace too")
    spaces = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*spaces, "true"], check=False).returncode:
        pytest.skip("this machine lets no user make a user namespace")
    argv = [*spaces, sys.executable, "-c", WITHOUT_INSTANCES, tmp_path]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    said = "cannot be watched: root has no inotify instance left; raise fs.inotify.max_user_instances; checked every 5"
    assert (done.stdout, said in done.stderr) == ("True\n", True), done.stderr


@pytest.mark.parametrize(
    ("words", "more"),
    [([], ["--no-blocks"]), (["--kubeconfig=/credential"], []), (["--kubeconfig", "/credential"], [])],
)
def test_a_container_without_a_credential(words: list[str], more: list[str]) -> None:
    """It has the leases to count them only (metrics.address of the chart).  Its rounds over the blocks would fail for
    ever; the agent does them on the host."""
    asked = containers.command(["node", "--metrics=127.0.0.1:9617", *words])
    assert asked == ["node", "--metrics=127.0.0.1:9617", *words, *more, "--cni-bin-dir=/opt/cni/bin"]
    assert flags.parse(asked[1:]).blocks is not bool(more)


def test_a_containers_directory_of_plugins() -> None:
    """The container's own program is at a path that the node does not have."""
    asked = containers.command(["node", "--cni-bin-dir=/var/lib/cni/bin"])
    assert asked == ["node", "--cni-bin-dir=/var/lib/cni/bin", "--no-blocks"]


def test_a_call_that_fails_ends_the_program() -> None:
    async def fails() -> None:
        loop = asyncio.get_running_loop()
        ended = main._ended(loop)
        loop.call_exception_handler({"message": "a peer sent nonsense", "exception": ValueError(), "protocol": None})
        assert not ended.done()
        loop.call_soon({}.pop, "nothing")
        async with asyncio.timeout(60):
            await ended

    with pytest.raises(KeyError):
        asyncio.run(fails())
