"""A kubelet on grpc-go, as a DRA driver sees it: netns-fixtures/gokubelet, with the interface of node_dra.DraKubelet.

The generated clients of k8s.io/kubelet decode the driver's answers, and print them as JSON.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

from conftest import require
from google.protobuf.json_format import Parse

from base.kubelet import dra_pb2 as dra
from base.kubelet import drahealth_pb2 as health
from base.kubelet import pluginregistration_pb2 as reg

BUILD = Path(__file__).parents[2] / "netns-fixtures/gokubelet/build"


@cache
def built(tier: str) -> str:
    """The program; the first call builds it, for a minute.  Skips the test if that is impossible."""
    done = subprocess.run([BUILD], capture_output=True, text=True, check=False)
    if done.returncode:
        require(tier, done.stderr.strip())
    return done.stdout.strip()


class Health:
    """The answers of a health stream, until ``cancel`` ends the client."""

    def __init__(self, argv: list[str]) -> None:
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        assert self._process.stdout
        return Parse(next(self._process.stdout), health.NodeWatchResourcesResponse())

    def cancel(self) -> None:
        with self._process as process:
            process.kill()


class GoKubelet:
    version = health_version = "v1"

    def __init__(self, program: str, socket: Path, stack: ExitStack) -> None:
        self._program, self._socket, self._stack = program, socket, stack

    def info(self) -> Any:
        return Parse(self._ask("v1", "info"), reg.PluginInfo())

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, Any]:
        """Prepare claims by namespace, name and UID; the answers by UID."""
        said = self._ask(self.version, "prepare", _request(claims))
        return dict(Parse(said, dra.NodePrepareResourcesResponse()).claims)

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, str]:
        """Give claims up; the errors by UID."""
        said = self._ask(self.version, "unprepare", _request(claims))
        return {uid: one.error for uid, one in Parse(said, dra.NodeUnprepareResourcesResponse()).claims.items()}

    def health(self) -> Health:
        stream = Health(self._argv(self.health_version, "health"))
        self._stack.callback(stream.cancel)
        return stream

    def _argv(self, *words: str) -> list[str]:
        return [self._program, str(self._socket), *words]

    def _ask(self, *words: str) -> str:
        done = subprocess.run(self._argv(*words), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _request(claims: tuple[tuple[str, str, str], ...]) -> str:
    return json.dumps({"claims": [{"namespace": space, "name": name, "uid": uid} for space, name, uid in claims]})


@contextmanager
def go_kubelet(tier: str, socket: Path) -> Iterator[GoKubelet]:
    with ExitStack() as stack:
        yield GoKubelet(built(tier), socket, stack)
