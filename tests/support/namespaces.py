"""The network namespaces of pods, which belong to the host's user namespace or to a separate one."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

# Runs a test twice: with ordinary pods, and with pods in their own user namespace (fixture pods).
with_both = pytest.mark.parametrize("pods", [pytest.param("", id=pytest.HIDDEN_PARAM), "userns"], indirect=True)
_SO_NETNS_COOKIE = 71  # asm-generic/socket.h


def _has_cookies() -> bool:
    with socket.socket() as one:
        try:
            return bool(one.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
        except OSError:
            return False


# Marks a test that needs a namespace's cookie.  test_a_kernel_without_cookies covers a kernel without it.
needs_cookies = pytest.mark.skipif(
    not _has_cookies(), reason="this kernel has no SO_NETNS_COOKIE, so another namespace may pass for one that is gone"
)


def are_in_user_namespaces() -> bool:
    """Return True if each pod has its own user namespace, as with ``hostUsers: false``."""
    return os.environ.get("HPN_PODS") == "userns"


def new_namespace(name: str) -> None:
    """Make a named namespace for a pod of that kind."""
    if not are_in_user_namespaces():
        _ip("add", name)
        return
    words = ("unshare", "--user", "--net", "sh", "-c", "echo made; read -r _")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        assert owner.stdout.readline()
        for kind in ("uid", "gid"):
            Path(f"/proc/{owner.pid}/{kind}_map").write_text("0 100000 65536")
        _ip("attach", name, str(owner.pid))


def _ip(*words: str) -> None:
    subprocess.run(["ip", "netns", *words], check=True)
