"""The network namespaces of pods: of the host's user namespace, or of one of their own."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

# Of a test: once with pods as usual, and once with pods that have a user namespace of their own (fixture pods).
with_both = pytest.mark.parametrize("pods", [pytest.param("", id=pytest.HIDDEN_PARAM), "userns"], indirect=True)
_SO_NETNS_COOKIE = 71  # asm-generic/socket.h


def _has_cookies() -> bool:
    with socket.socket() as one:
        try:
            return bool(one.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
        except OSError:
            return False


# Of a test of what hpn does with a namespace's cookie.  Without it: test_a_kernel_without_cookies.
needs_cookies = pytest.mark.skipif(
    not _has_cookies(), reason="this kernel has no SO_NETNS_COOKIE, so another namespace may pass for one that is gone"
)


def are_in_user_namespaces() -> bool:
    """Whether pods have a user namespace of their own, as with ``hostUsers: false``."""
    return os.environ.get("HPN_PODS") == "userns"


def new_namespace(name: str) -> None:
    """A named one, whose pod is of that kind."""
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
