"""Records of pods with RDMA devices for the tests of hpn hints; real ones need NICs."""

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Protocol

import pytest
from unit.ctl.test_inspect import VF, save

from base.protocol.spec import Key
from base.state.record import Record
from ctl.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "user" / "rdma.md").read_text()
LIBRARIES = ("nccl", "ucx", "mpi", "nvshmem")


def gid(device: str, index: int, address: str = "10.56.0.2", kind: str = "RoCE v2", port: int = 1) -> dict[str, Any]:
    return {"address": address, "device": device, "port": port, "index": index, "type": kind}


def rail(ifname: str, *gids: dict[str, Any], devices: tuple[str, ...] = (), **more: Any) -> Record:
    """Return the record of a VF of pod default/train-0, with these GIDs and further RDMA devices."""
    names = list(dict.fromkeys([*(g["device"] for g in gids), *devices]))
    pod = {"pod": "default/train-0", "key": Key("0123456789abcdef", ifname)}
    return replace(VF, link={**VF.link, "rdma_devs": names}, gids=list(gids), **{**pod, **more})


ONE = rail("hpn0", gid("mlx5_4", 2, kind="IB/RoCE v1"), gid("mlx5_4", 3))
TWO = rail("hpn1", gid("mlx5_5", 3, "10.57.0.2"))
OTHER = rail("hpn1", gid("mlx5_5", 7, "10.57.0.2"))
IPV6 = rail("hpn0", gid("mlx5_4", 5, "fd00:56::2"))
BOTH = rail("hpn0", gid("mlx5_4", 5, "fd00:56::2"), gid("mlx5_4", 9, "10.56.0.2"))
INFINIBAND = rail("hpn0", devices=("mlx5_4",))
SOCKETS = rail("hpn0")

# A cloud's documentation has these lines for a NIC of its first type, and for a pod without RDMA.
TYPE_1 = """\
export NCCL_SOCKET_IFNAME=eth0
export NCCL_IB_HCA=mlx5
export NCCL_DEBUG=INFO
"""
TYPE_2 = """\
export NCCL_IB_DISABLE=1
export NCCL_SOCKET_IFNAME=eth0
export NCCL_IB_HCA=
export NCCL_DEBUG=INFO
"""


class Hints(Protocol):
    def __call__(self, records: tuple[Record, ...], *words: str, what: str = ..., status: int = ...) -> str: ...


def asking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Hints:
    """Return a function that saves records, runs hpn hints, and returns stdout, or stderr after a failure."""

    def ask(records: tuple[Record, ...], *words: str, what: str = "default/train-0", status: int = 0) -> str:
        state = Path(mkdtemp(dir=tmp_path))
        save(state, *records)
        assert main(["hpn", "hints", what, "--state-dir", str(state), *words]) == status
        said = capsys.readouterr()
        assert (said.err == "") == (status == 0)
        return said.out if status == 0 else said.err

    return ask
