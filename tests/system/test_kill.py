"""A runtime's deadline: SIGKILL at any moment of ADD, followed by DEL at once."""

import json
import os
import random
import subprocess
import time

import pytest
from system.machine import Machine, ours, running

KILLS = 20


@pytest.mark.parametrize("seed", [1])
def test_killed_add_is_undone_by_del(machine: Machine, seed: int) -> None:
    """The moments are drawn from the whole run, until enough of them came before its end."""
    conf = json.dumps({"cniVersion": "1.1.0", "name": "rail0", **machine.local(ours())})
    pod = machine.pod()
    argv = [str(machine.tools.hpn)]

    def once() -> float:
        started = time.monotonic()
        assert machine.node.run(argv, machine.command("ADD", pod), conf).returncode == 0
        took = time.monotonic() - started
        assert machine.node.run(argv, machine.command("DEL", pod), conf).returncode == 0
        return took

    whole = once()
    chance = random.Random(seed)
    killed = 0
    while killed < KILLS:
        moment = whole * chance.random()
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
        time.sleep(moment)
        process.kill()
        if process.wait() == -9:
            killed += 1
        else:
            # It ended first: a busy machine wakes a test late.
            whole *= 0.9
        process.stdout.close()
        done = machine.node.run(argv, machine.command("DEL", pod), conf)
        assert done.returncode == 0, (moment, done.stdout, done.stderr)
        assert running() == [], moment
        assert machine.records() == [], moment
        assert machine.links(pod) == set(), moment
