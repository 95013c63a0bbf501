"""A runtime's deadline: SIGKILL at any moment of ADD, followed by DEL at once."""

import json
import os
import random
import subprocess
import time

import pytest
from system.machine import Machine, ours, running

MOMENTS = 25


@pytest.mark.parametrize("seed", [1])
def test_killed_add_is_undone_by_del(machine: Machine, seed: int) -> None:
    """The kills are spread over the whole run, and reproducible except for the clock."""
    conf = json.dumps({"cniVersion": "1.1.0", "name": "rail0", **machine.local(ours())})
    pod = machine.pod()
    argv = [str(machine.tools.hpn)]

    def once() -> float:
        started = time.monotonic()
        assert machine.node.run(argv, machine.command("ADD", pod), conf).returncode == 0
        took = time.monotonic() - started
        assert machine.node.run(argv, machine.command("DEL", pod), conf).returncode == 0
        return took

    # The least of three: after a pause of the machine, all kills would come too late.
    whole = min(once() for _ in range(3))
    chance = random.Random(seed)
    killed = 0
    for i in range(MOMENTS):
        process = subprocess.Popen(
            machine.node.command(*argv),
            env={**os.environ, **machine.command("ADD", pod)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        process.stdin.write(conf.encode())
        process.stdin.close()
        # time: when to kill, drawn
        time.sleep(whole * (i + chance.random()) / MOMENTS)
        process.kill()
        killed += process.wait() == -9
        process.stdout.close()
        done = machine.node.run(argv, machine.command("DEL", pod), conf)
        assert done.returncode == 0, (i, done.stdout, done.stderr)
        assert running() == [], i
        assert machine.records() == [], i
        assert machine.links(pod) == set(), i
    assert killed > MOMENTS // 2
