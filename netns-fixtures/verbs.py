"""RDMA traffic between two namespaces, by the usual programs: ibverbs-utils, perftest, rping."""

import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address

_PATIENCE = 120.0
# Soft-RoCE in a stalled emulated machine repeats packets, and answers some of these with an error: then either program
# ends, or waits forever.
_ATTEMPTS = 3


@dataclass(frozen=True)
class End:
    """A namespace with an RDMA device on the interface with this address."""

    netns: str
    device: str
    address: str

    @property
    def gid_index(self) -> int:
        """The index of its address as RoCE v2 (RFC 4291's mapped form).  Raises LookupError if the table does not have
        it yet."""
        packed = b"\0" * 10 + b"\xff" * 2 + IPv4Address(self.address).packed
        port = f"/sys/class/infiniband/{self.device}/ports/1"
        # Up to 1024 entries; a namespace's view of /sys is available only inside, and reading a free entry's type
        # fails.
        gids, types = (
            dict(line.split(":", 1) for line in _output(self.inside("sh", "-c", f"cd {port}/{d}; grep -s '' ? ??")))
            for d in ("gids", "gid_attrs/types")
        )
        for index, gid in gids.items():
            if bytes.fromhex(gid.replace(":", "")) == packed and types.get(index) == "RoCE v2":
                return int(index)
        raise LookupError(f"{self.device} in {self.netns} has no GID of {self.address}")

    def inside(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.netns, *command]


def ibv_rc_pingpong(server: End, client: End) -> str:
    """The client's report of 200 messages in each direction."""

    def command(end: End) -> list[str]:
        return end.inside("ibv_rc_pingpong", "-d", end.device, "-g", str(end.gid_index), "-n", "200")

    return _between(command(server), [*command(client), server.address], server.inside("ss", "-Hltn"), ":18515 ")


def ib_write_bw(server: End, client: End, mtu: int = 1024, port: int = 18515) -> str:
    """The client's report of 100 writes of 64 KiB, in packets that carry ``mtu`` bytes.  Both ends exchange parameters
    by TCP, at the server's ``port``."""

    def command(end: End) -> list[str]:
        words = ("-d", end.device, "-x", str(end.gid_index), "-s", "65536", "-n", "100", "-m", str(mtu), "-F")
        # A packet is repeated after 4 us * 2^21, which are 9 s.  By default it is 67 ms.
        words += ("-u", "21")
        return end.inside("ib_write_bw", *words, "-p", str(port))

    return _between(command(server), [*command(client), server.address], server.inside("ss", "-Hltn"), f":{port} ")


def bandwidth(report: str) -> float:
    """The average in the output of ``ib_write_bw``, in MB/s."""
    *_, measured, _ = report.splitlines()
    size, iterations, _peak, average, _rate = map(float, measured.split())
    if (size, iterations) != (65536, 100):
        raise ValueError(f"no result: {report}")
    return average


def rping(server: End, client: End) -> str:
    """The client's output of three pings; rdma_cm makes the connection by address."""
    common = ["rping", "-a", server.address, "-C", "3", "-v"]
    return _between(
        server.inside(*common, "-s"),
        client.inside(*common, "-c"),
        server.inside("rdma", "resource", "show", "cm_id"),
        f"src-addr {server.address}:",
    )


def _between(server: list[str], client: list[str], listening: list[str], who: str) -> str:
    """Return the output of the first of three attempts that succeeds.  Raises as `_once` does."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(subprocess.SubprocessError):
            return _once(server, client, listening, who)
    return _once(server, client, listening, who)


def _once(server: list[str], client: list[str], listening: list[str], who: str) -> str:
    """Run both, the client after ``listening`` prints a line with ``who``; return the client's output.
    Raises CalledProcessError, TimeoutExpired."""
    deadline = time.monotonic() + _PATIENCE
    with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as serving:
        try:
            while not any("LISTEN" in line and who in line for line in _output(listening)):
                if serving.poll() is not None or time.monotonic() > deadline:
                    raise subprocess.CalledProcessError(serving.poll() or 1, server, "it did not come to listen")
                # time: the pace of a loop with a deadline
                time.sleep(0.1)
            return subprocess.run(
                client, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True, timeout=_PATIENCE
            ).stdout
        finally:
            serving.kill()


def _output(command: list[str]) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
