"""Stands for ib_write_lat and ib_write_bw of perftest 4.5, with TCP only: the same options, output and reports.

A file in the directory HPN_FAULTS, named by the client's port of the device ("x1", "x1.bw"), has the words of a fault:
"value N", "fail TEXT", "hang" (both ends) or "server TEXT".  Each process notes its id in the file "pids" there.
"""

import itertools
import os
import socket
import sys
import time
from pathlib import Path

REPORT = """\
{{
test_info: {{
test: RDMA_Write_Test,
Device: "{device}",
Mtu: 1024,
GID_index: {gid},
}},
results: {{
MsgSize: 2,
{name}: {value:.6f},
}},
}}
"""
HEADER = " Dual-port       : OFF\t\tDevice         : {device}\n Mtu             : 1024[B]\n GID index       : {gid}\n"


def fault(device: str, program: str) -> tuple[str, str]:
    for name in (f"{device}.{program}", device):
        path = Path(os.environ.get("HPN_FAULTS", "/nowhere"), name)
        if path.exists():
            kind, _, rest = path.read_text().strip().partition(" ")
            return kind, rest
    return "", ""


def fail(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.exit(1)


def main(argv: list[str]) -> None:
    program, words = argv[0].rpartition("_")[2], argv[1:]
    if "--help" in words:
        print("  --out_json\n  --out_json_file=<file>\n  --source_ip\n  --tclass=<value>\n")
        sys.exit(1)
    if faults := os.environ.get("HPN_FAULTS"):
        with Path(faults, "pids").open("a") as pids:
            pids.write(f"{os.getpid()}\n")
    values = dict(itertools.pairwise(words))
    device, gid, port = values["-d"], values["-x"], int(values["-p"])
    source = next(word for word in words if word.startswith("--source_ip=")).partition("=")[2]
    report = next((word.partition("=")[2] for word in words if word.startswith("--out_json_file=")), "")
    kind, rest = fault(device, program)
    print(HEADER.format(device=device, gid=gid), flush=True)
    if not report:
        if kind == "server":
            fail(rest)
        with socket.create_server((source, port)) as listener:
            peer, _ = listener.accept()
            if kind == "hang":
                # time: a program that does not end
                time.sleep(600)
            while peer.recv(10):
                pass
        return
    with socket.create_connection((words[-1], port), 60, (source, 0)):
        if kind == "hang":
            # time: a program that does not end
            time.sleep(600)
        if kind == "fail":
            fail(rest)
    value = float(rest) if kind == "value" else {"bw": 95.0, "lat": 2.0}[program]
    name = {"bw": "BW_average", "lat": "t_typical"}[program]
    Path(report).write_text(REPORT.format(device=device, gid=gid, name=name, value=value))


if __name__ == "__main__":
    main(sys.argv)
