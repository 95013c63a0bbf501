"""Jobs of Open MPI over pods that are network namespaces here; each program gets new other namespaces, as a runtime
makes them for a container."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

WORKLOADS = Path(__file__).parent / "workloads"
IN_POD = WORKLOADS / "in_pod"
# UCX would treat soft-RoCE's datagrams as addressed to another host, and drop them.
OF_SOFT_ROCE = "export UCX_UD_ETH_DGID_CHECK=n\n"
_PATIENCE = 240.0


def describe(folder: Path, environments: Mapping[str, str], addresses: Mapping[str, str]) -> None:
    """Write the files for ``in_pod``: for each pod the shell lines that ``hpn hints`` printed, and its address."""
    for pod, lines in environments.items():
        (folder / f"{pod}.env").write_text(lines)
    names = "".join(f"{address} {pod}\n" for pod, address in addresses.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")


def mpirun(folder: Path, pods: Sequence[str], program: str, *options: str) -> str:
    """Run a program of workloads/ with a rank in each pod, started from the first one; return all its output.  Raises
    CalledProcessError, TimeoutExpired."""
    hosts = ("--host", ",".join(pods), "-np", str(len(pods)), "--mca", "plm_rsh_agent", str(IN_POD))
    command = ("mpirun", "--allow-run-as-root", *hosts, *options, "/usr/bin/python3", str(WORKLOADS / program))
    try:
        return subprocess.run(
            [IN_POD, pods[0], *command],
            env={**os.environ, "HPN_PODS": str(folder), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=_PATIENCE,
        ).stdout
    except subprocess.CalledProcessError as e:
        e.add_note(e.output.strip())
        raise


def tcp_segments(pod: str) -> int:
    """The TCP segments sent in the pod, by the kernel's counter."""
    command = ("ip", "netns", "exec", pod, "nstat", "--json", "--zeros", "--ignore", "--noupdate", "TcpOutSegs")
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(json.loads(said)["kernel"]["TcpOutSegs"])
