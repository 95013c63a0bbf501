"""The program as a process: python -m ipam, and its imports per command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONF = {"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": {"subnet": "10.0.0.0/24"}}


def python(*args, stdin=b"", **environ):
    environ = {"CNI_CONTAINERID": "c", "CNI_IFNAME": "net1", "CNI_NETNS": "/x", **environ}
    return subprocess.run([sys.executable, *args], cwd=ROOT, env=environ, input=stdin, capture_output=True, check=False)


def test_process(tmp_path):
    conf = {**CONF, "ipam": {**CONF["ipam"], "dataDir": str(tmp_path)}}
    done = python("-m", "ipam", stdin=json.dumps(conf).encode(), CNI_COMMAND="ADD")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == {
        "cniVersion": "1.1.0",
        "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1"}],
    }
    done = python("-m", "ipam", stdin=json.dumps({**conf, "ipam": {}}).encode(), CNI_COMMAND="ADD")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 7)


@pytest.mark.parametrize(
    ("command", "loaded"),
    [
        ("VERSION", []),  # asked before every other command by some runtimes
        ("DEL", []),  # of no lease; it cannot fail for what the configuration's parser thinks
        ("ADD", ["filelock", "pydantic"]),
    ],
)
def test_packages_loaded(tmp_path, command, loaded):
    program = (
        "import json, os, sys; from base.protocol.spec import Request; from ipam.main import run\n"
        "assert run(Request(dict(os.environ), sys.stdin.buffer.read())).exit_code == 0\n"
        "print(json.dumps(sorted({'filelock', 'netaddr', 'pydantic'} & sys.modules.keys())))"
    )
    conf = json.dumps({**CONF, "ipam": {**CONF["ipam"], "dataDir": str(tmp_path)}}).encode()
    assert json.loads(python("-c", program, stdin=conf, CNI_COMMAND=command).stdout) == loaded
