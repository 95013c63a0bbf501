"""The network namespaces of pods: of the host's user namespace, or of one of their own."""

import os
import subprocess
from pathlib import Path

import pytest

# Of a test: once with pods as usual, and once with pods that have a user namespace of their own (fixture pods).
with_both = pytest.mark.parametrize("pods", [pytest.param("", id=pytest.HIDDEN_PARAM), "userns"], indirect=True)


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
