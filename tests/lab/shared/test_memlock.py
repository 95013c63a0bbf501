"""Locked memory as RDMA needs it: a process that is not root registers more than the runtime's limit once the hook has
raised it, as runc calls the hook between a container's namespaces and its program."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest.machine import rdma
from support.topology import ip, until

NAME = "memlock0"
RUNTIMES = 8 << 20  # containerd's limit
LARGE = 64 << 20
USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
# Registers memory as NCCL does, and prints the outcome.
REGISTERS = """
import ctypes, mmap, os, sys
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_void_p
name, size = sys.argv[1].encode(), int(sys.argv[2])
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for one in ("open_device", "alloc_pd", "reg_mr"):
    getattr(verbs, f"ibv_{one}").restype = c_void_p
verbs.ibv_get_device_list.restype = ctypes.POINTER(c_void_p)
verbs.ibv_get_device_name.restype = c_char_p
count = c_int()
listed = verbs.ibv_get_device_list(byref(count))
(device,) = [c_void_p(one) for one in listed[: count.value] if verbs.ibv_get_device_name(c_void_p(one)) == name]
domain = c_void_p(verbs.ibv_alloc_pd(c_void_p(verbs.ibv_open_device(device))))
memory = mmap.mmap(-1, size)
first = ctypes.addressof(c_char.from_buffer(memory))
region = verbs.ibv_reg_mr(domain, c_void_p(first), c_size_t(size), 1)
print("registered" if region else os.strerror(ctypes.get_errno()), flush=True)
os._exit(0)
"""


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    ip("link", "set", "rail0", "up")
    rdma("link", "add", NAME, "type", "rxe", "netdev", "rail0")
    yield
    rdma("link", "delete", NAME)


@pytest.fixture(params=["", "userns"])
def spaces(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """The words before the container's: none, or those for a user namespace of the pod's own."""
    if not request.param:
        yield []
        return
    with subprocess.Popen(["unshare", "--user", "sleep", "3600"]) as holder:
        path = Path(f"/proc/{holder.pid}")
        until(lambda: (path / "comm").read_text() == "sleep\n")
        for kind in ("uid", "gid"):
            (path / f"{kind}_map").write_text("0 100000 65536")
        yield ["nsenter", f"--user={path}/ns/user", "--setuid=0", "--setgid=0"]
        holder.kill()


def outcome(spaces: list[str], *hook: str, size: int = LARGE) -> tuple[int, str, list[str]]:
    """The hook's exit status and stderr, and what the container's program, of user 1000, prints: its limit, and the
    outcome."""
    program = [*USER, "sh", "-c", 'ulimit -l; exec "$@"', "sh", "/usr/bin/python3", "-c", REGISTERS, NAME, f"{size}"]
    script = ["sh", "-c", 'echo up; read go; exec "$@"', "sh", *program]
    words = ["prlimit", f"--memlock={RUNTIMES}", *spaces, *script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as container:
        assert container.stdout
        assert container.stdout.readline() == "up\n"
        state = json.dumps({"ociVersion": "1.2.1", "id": "c", "status": "creating", "pid": container.pid})
        status, said = 0, ""
        if hook:
            argv = [os.environ["HPN_BINARY"], "hook", "memlock", *hook]
            done = subprocess.run(argv, input=state, capture_output=True, text=True, check=False)
            status, said = done.returncode, done.stderr
        return status, said, container.communicate("go\n", timeout=300)[0].split("\n")[:2]


def test_a_large_registration(spaces: list[str]) -> None:
    """Also in a user namespace of the pod's own, whose root could not raise the limit."""
    assert outcome(spaces) == (0, "", [f"{RUNTIMES >> 10}", "Cannot allocate memory"])
    assert outcome(spaces, size=1 << 20)[2][1] == "registered"
    assert outcome(spaces, "unlimited", "required") == (0, "", ["unlimited", "registered"])
    assert outcome(spaces, f"{2 * LARGE}") == (0, "", [f"{2 * LARGE >> 10}", "registered"])
    assert outcome(spaces, f"{LARGE // 2}")[2][1] == "Cannot allocate memory"
