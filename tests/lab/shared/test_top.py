"""hpn top compared with ib_write_bw on real traffic."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guest.machine import verbs
from guest.node import Node
from lab.shared.test_rxe import RXE, device
from support.node_process import PROGRAM
from support.topology import Pod

ROOT = Path(__file__).parents[3]
WRITES, SIZE = 100, 65536


@contextmanager
def watching(*words: str) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run hpn top while the body runs; the function ends it and returns its samples."""
    command = ["env", "--default-signal=INT", *PROGRAM, "top", "--json", "--interval", "0.5", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ) as one:
        assert one.stdout
        steps = [json.loads(one.stdout.readline())]

        def end() -> list[dict[str, Any]]:
            assert one.stdout
            now = time.time()
            # Several more samples: reading and printing one takes time in an emulated machine.
            while steps[-1]["time"] - 4 * steps[-1]["seconds"] < now:
                steps.append(json.loads(one.stdout.readline()))
            one.send_signal(signal.SIGINT)
            return steps

        try:
            yield end
        finally:
            one.kill()


def carried(pod: Pod) -> dict[str, int]:
    """The octets that the pod's interface has received and sent, by the kernel's counters."""
    (link,) = pod.ip("-s", "link", "show", "dev", "hpn0")
    return {way: link["stats64"][way]["bytes"] for way in ("rx", "tx")}


@pytest.fixture
def large_packets() -> Iterator[None]:
    """The rails accept packets of 4 KiB."""

    def rails(mtu: int) -> None:
        for number in range(2):
            subprocess.run(["ip", "link", "set", f"rail{number}", "mtu", str(mtu)], check=True)

    rails(4300)
    yield
    rails(1500)


@pytest.mark.usefixtures("large_packets")
def test_it_shows_what_went_through(node: Node, make_pod: Callable[[], Pod]) -> None:
    """hpn top shows the octets that the interface carried and ib_write_bw wrote.  In packets of 4 KiB, headers are 1.4
    %."""
    pods, ends = (make_pod(), make_pod()), []
    for number, pod in enumerate(pods):
        conf = node.conf(kind="macvlan", master=f"rail{number}", deviceID=..., rdma=RXE, mtu=4300,
                         ipam={"type": "hpn-ipam", "ranges": [[{"subnet": "10.56.0.0/24"}]]})  # fmt: skip
        result = node.ok("ADD", pod, conf)
        ends.append(verbs.End(pod.name, device(pod), result["ips"][0]["address"].partition("/")[0]))
    before = [carried(pod) for pod in pods]
    with watching(*(end.device for end in ends)) as end_it:
        said = verbs.ib_write_bw(*ends, mtu=4096)
        steps = end_it()
    assert re.search(rf"^ *{SIZE} +{WRITES} ", said, re.MULTILINE)
    for pod, end, then in zip(pods, ends, before, strict=True):
        ports = [(step["seconds"], port) for step in steps for port in step["ports"] if port["device"] == end.device]
        for way, number in carried(pod).items():
            through = sum(port[way] * seconds for seconds, port in ports)
            # The interface also counts Ethernet headers, and some packets before and after.
            assert 0.98 * (number - then[way]) - 20_000 < through <= number - then[way]
    written = sum(
        port["tx"] * step["seconds"] for step in steps for port in step["ports"] if port["device"] == ends[1].device
    )
    print(f"hpn top: {written / (WRITES * SIZE):.3f} of what ib_write_bw wrote")
    # Repeated packets count too: a busy emulated machine repeats many, an unknown number.
    assert written / (WRITES * SIZE) > 1.0, said
    for pod in pods:
        node.ok("DEL", pod, node.conf())
