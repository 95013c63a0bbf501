"""Run on a node: ADD and DEL of hpn, as a runtime calls them, until stdin ends.

python commands_on_node.py THREADS: prints the numbers of ADDs and DELs, and each failure.  Each thread has its own
namespace, and attaches it as another container each time.
"""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CONF = {
    "cniVersion": "1.0.0", "name": "commands", "type": "hpn", "master": "rail0",
    "ipam": {"type": "hpn-ipam", "subnet": "10.57.0.0/24"},
}  # fmt: skip


class Commands:
    """The commands of all threads, the addresses that are attached, and what went wrong."""

    def __init__(self) -> None:
        self.ended, self.lock = threading.Event(), threading.Lock()
        self.held, self.failures, self.count = set[str](), list[str](), 0

    def thread(self, number: int) -> None:
        name = f"commands{number}"
        subprocess.run(["ip", "netns", "add", name], check=True)
        while not self.ended.is_set():
            container = f"{name}-{self.count}"
            if added := self.call("ADD", name, container):
                (address,) = (one["address"] for one in added["ips"])
                with self.lock:
                    self.failures += [f"{address} has two owners"] if address in self.held else []
                    self.held.add(address)
                shown = subprocess.run(["ip", "-netns", name, "address"], capture_output=True, text=True, check=True)
                self.failures += [] if f"{address} " in shown.stdout else [f"{container} lacks {address}"]
                with self.lock:
                    self.held.discard(address)
            self.call("DEL", name, container)
        links = subprocess.run(["ip", "-netns", name, "-json", "link"], capture_output=True, text=True, check=True)
        self.failures += [f"{name} has {one['ifname']}" for one in json.loads(links.stdout) if one["ifname"] != "lo"]
        subprocess.run(["ip", "netns", "delete", name], check=True)

    def call(self, command: str, namespace: str, container: str) -> dict[str, Any] | None:
        """The result; None after a failure."""
        environ = {
            "CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_NETNS": f"/run/netns/{namespace}",
            "CNI_IFNAME": "hpn0", "CNI_PATH": "/opt/cni/bin",
        }  # fmt: skip
        done = subprocess.run(
            ["/opt/cni/bin/hpn"], input=json.dumps(CONF), env=os.environ | environ, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        with self.lock:
            self.count += 1
            self.failures += [f"{command} of {container}: {done}"] if done.returncode else []
        if done.returncode:
            return None
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found


def main(threads: int) -> None:
    it = Commands()
    with ThreadPoolExecutor(threads) as pool:
        all_of_them = [pool.submit(it.thread, number) for number in range(threads)]
        sys.stdin.read()
        it.ended.set()
        for one in all_of_them:
            one.result()
    print(json.dumps({"count": it.count, "failures": it.failures}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
