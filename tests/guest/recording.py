"""Run in the guest: attach and detach addresses from many processes on a disk that records every write.

The disk is a dm-log-writes device.  Between its writes the record contains marks from the writers: the command that
they start, and the answer that they received.  tests/test_power_cut.py cuts the power anywhere in that record.
"""

import json
import os
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from random import Random
from struct import pack

from base.protocol.spec import Request
from ipam.main import run

NAME = "recorded"
DEVICE = "/dev/dm-0"  # the only one; nothing makes names in /dev/mapper
SIZE = 16 << 20
WRITERS = 8
# Enough room for all held addresses and all that cool down or stay reserved.
IPAM = {"type": "hpn-ipam", "ranges": [[{"subnet": "10.0.0.0/25"}], [{"subnet": "fd00::/64"}]]}
# Seconds, longer than the whole test takes.
AGES = 100_000

_DM_TARGET_MSG = 3 << 30 | 312 << 16 | 0xFD << 8 | 14


class Marks:
    """Equivalent to: dmsetup message recorded 0 mark TEXT"""

    def __init__(self) -> None:
        self._control = os.open("/dev/mapper/control", os.O_RDWR)

    def __call__(self, text: str) -> None:
        message = bytes(8) + f"mark {text}".encode() + b"\0"
        header = pack("<6I16x8x128s129s7x", 4, 0, 0, 312 + len(message), 312, 0, NAME.encode(), b"")
        ioctl(self._control, _DM_TARGET_MSG, bytearray(header + message))


def work(state: Path, writer: int, operations: int) -> None:
    """Attach, attach again and detach a few at a time, at random, with a mark before and after each.

    Some addresses cool down after their release, and some stay reserved for their name: w1-7c, and w1-7.s1-0 for the
    name s1-0.
    """
    random, mark = Random(writer), Marks()
    # Some leases take several lines.
    pods = ("K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p", f"K8S_POD_NAMESPACE={'n' * 60};K8S_POD_NAME={'p' * 250}")
    held, number, names = dict[str, str](), 0, {f"s{writer}-{n}": "" for n in range(2)}
    for _ in range(operations):
        if held and random.random() < len(held) / 6:
            name = random.choice(sorted(held))
            mark(f"del:{name}")
            assert call(conf(state), "DEL", name, "") == {}
            mark(f"deleted:{name}")
            given = held.pop(name)
            if sticky(name):
                names[sticky(name)] = given
        else:
            number += 1
            again = held and random.random() < 0.1
            idle = sorted(names.keys() - set(map(sticky, held)))
            new = f"w{writer}-{number}" + random.choice(["", "", "", "", "c", *(f".{one}" for one in idle)])
            name = random.choice(sorted(held)) if again else new
            mark(f"add:{name}")
            answer = call(
                conf(state, name), "ADD", name, random.choice(pods) + f";STICKY={sticky(name)}" * (sticky(name) != "")
            )
            if answer.get("code") == 103:
                continue
            given = ",".join(ip["address"].partition("/")[0] for ip in answer["ips"])
            assert held.setdefault(name, given) == given
            assert names.get(sticky(name), "") in ("", given), "a name has what it had"
            mark(f"added:{name}:{given}")


def sticky(name: str) -> str:
    """The name that keeps the address after its release; empty if none does."""
    return name.partition(".")[2]


def cools(name: str) -> bool:
    return name.endswith("c")


def conf(state: Path, name: str = "") -> dict[str, object]:
    terms = {"releaseCooldown": AGES * cools(name), "sticky": AGES * bool(sticky(name))}
    return {"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": IPAM | terms | {"dataDir": f"{state}/ipam"}}


def call(conf: dict[str, object], command: str, name: str, args: str) -> dict[str, object]:
    environ = {
        "CNI_COMMAND": command, "CNI_CONTAINERID": name, "CNI_IFNAME": "net1", "CNI_NETNS": "/run/netns/p",
        "CNI_PATH": "/opt/cni/bin", "CNI_ARGS": args,
    }  # fmt: skip
    return json.loads(run(Request(environ, json.dumps(conf).encode())).stdout or "{}")


def shell(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def record(operations: int) -> None:
    shell("modprobe", "-a", "dm-log-writes", "ext4")
    shell("modprobe", "brd", "rd_nr=2", f"rd_size={1 << 20}")
    shell("dmsetup", "create", NAME, "--table", f"0 {SIZE // 512} log-writes /dev/ram0 /dev/ram1")
    shell("mkfs.ext4", "-q", "-b", "4096", "-E", "nodiscard", "-J", "size=4", DEVICE)
    disk = Path("/run/lab/recorded")
    disk.mkdir()
    shell("mount", "-t", "ext4", DEVICE, str(disk))
    # Warm up all late imports: under emulation they take seconds.
    assert "ips" in call(conf(Path("/run/tmp/warm")), "ADD", "warm", "")
    writers = []
    for writer in range(1, WRITERS + 1):
        if not (child := os.fork()):
            status = 1
            try:
                work(disk, writer, operations)
                status = 0
            finally:
                os._exit(status)
        writers.append(child)
    failed = [child for child in writers if os.waitpid(child, 0)[1]]
    shell("umount", str(disk))
    used = int(shell("dmsetup", "status", NAME).split()[-1])
    shell("dmsetup", "remove", NAME)
    with open("/dev/ram1", "rb") as log, Path(os.environ["HPN_LAB"], "log").open("wb") as copy:
        # Removing the device adds one mark: the end.
        left = (used + 8) * 512
        while left > 0 and (data := log.read(min(left, 1 << 20))):
            copy.write(data)
            left -= len(data)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    record(int(sys.argv[1]))
