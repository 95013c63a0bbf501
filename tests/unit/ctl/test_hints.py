"""hpn hints: the variables of each library, line by line."""

from pathlib import Path

import pytest
import yaml
from support.hinted import BOTH, INFINIBAND, IPV6, ONE, OTHER, PAGE, SOCKETS, TWO, TYPE_1, TYPE_2, Hints, gid, rail

from base.state.record import Record
from ctl.hints.command import read
from ctl.hints.libraries import Seen, lines, of, prefix

LEAVE = "unset NCCL_IB_GID_INDEX  # NCCL chooses the GID itself"
SINCE = f"{LEAVE} since 2.26; an older one"
DIFFER = "one index for all ports, and theirs differ (mlx5_4:1 3, mlx5_5:1 7)"
NO_GID = "# ADD found no GID on {}: InfiniBand needs none; on RoCE see: hpn inspect"
MPI = (
    "OMPI_MCA_btl_tcp_if_include=hpn0,hpn1",
    "OMPI_MCA_oob_tcp_if_include=eth0",
    "PRTE_MCA_prte_if_include=eth0",
)
NVSHMEM = ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=eth0", "NVSHMEM_ENABLE_NIC_PE_MAPPING=1")


def shell(*lines: str) -> str:
    """Return the lines as a shell reads them; lines without an assignment stay unchanged."""
    return "".join(f"{line if line.startswith(('unset ', '# ')) else f'export {line}'}\n" for line in lines)


def nccl(hca: str, *more: str) -> str:
    return shell("NCCL_SOCKET_IFNAME=eth0", f"NCCL_IB_HCA={hca}", "NCCL_DEBUG=INFO", *more)


@pytest.mark.parametrize(
    ("records", "version", "text"),
    [
        ((ONE,), "2.26", nccl("=mlx5_4:1", LEAVE)),
        ((TWO, ONE), "2.30.7", nccl("=mlx5_4:1,mlx5_5:1", LEAVE)),
        ((ONE, OTHER), "v2.26", nccl("=mlx5_4:1,mlx5_5:1", LEAVE)),
        ((ONE, TWO), "2.25.1-1", nccl("=mlx5_4:1,mlx5_5:1", "NCCL_IB_GID_INDEX=3")),
        ((ONE, OTHER), "2.20", nccl("=mlx5_4:1,mlx5_5:1", f"# NCCL 2.20 takes {DIFFER}: use 2.26")),
        ((IPV6,), "2.26", nccl("=mlx5_4:1", "NCCL_IB_ADDR_FAMILY=AF_INET6", LEAVE)),
        ((IPV6,), "2.20", nccl("=mlx5_4:1", "NCCL_IB_GID_INDEX=5")),
        ((BOTH,), "2.21", nccl("=mlx5_4:1", "NCCL_IB_GID_INDEX=9")),
        ((SOCKETS,), "2.26", TYPE_2),
    ],
)
def test_nccl_of_a_version(hints: Hints, records: tuple[Record, ...], version: str, text: str) -> None:
    assert hints(records, "--nccl-version", version) == text


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ((ONE, TWO), nccl("=mlx5_4:1,mlx5_5:1", f"{SINCE} needs 3")),
        ((ONE, OTHER), nccl("=mlx5_4:1,mlx5_5:1", f"{SINCE} takes {DIFFER}")),
        ((INFINIBAND,), nccl("=mlx5_4:1", NO_GID.format("mlx5_4:1"))),
        ((SOCKETS,), TYPE_2),
    ],
)
def test_nccl_of_any_version(hints: Hints, records: tuple[Record, ...], text: str) -> None:
    assert hints(records) == text


@pytest.mark.parametrize(
    ("records", "words", "text"),
    [
        ((ONE, TWO), "", TYPE_1),
        ((ONE, TWO), "--nccl-version 2.26", TYPE_1),
        (
            (ONE, TWO),
            "--nccl-version 2.25",
            f"{TYPE_1}# NCCL 2.25 may need an NCCL_IB_GID_INDEX, another in each pod: use 2.26\n",
        ),
        ((IPV6,), "--nccl-version 2.26", f"{TYPE_1}export NCCL_IB_ADDR_FAMILY=AF_INET6\n"),
        ((INFINIBAND,), "", TYPE_1),
        ((SOCKETS,), "", TYPE_2),
    ],
)
def test_for_a_template(hints: Hints, records: tuple[Record, ...], words: str, text: str) -> None:
    assert hints(records, "--template", *words.split()) == text


@pytest.mark.parametrize(
    ("records", "library", "text"),
    [
        ((ONE, TWO), "ucx", shell("UCX_NET_DEVICES=mlx5_4:1,mlx5_5:1", "UCX_IB_GID_INDEX=3")),
        ((SOCKETS, rail("hpn1")), "ucx", shell("UCX_NET_DEVICES=hpn0,hpn1")),
        (
            (rail("hpn0", gid("rocep26s0f0np0v1", 3)),),
            "ucx",
            shell(
                "UCX_NET_DEVICES=rocep26s0f0np0v1:1",
                "UCX_IB_GID_INDEX=3",
                "# UCX finds no device whose name has more than 15 characters: rocep26s0f0np0v1",
            ),
        ),
        (
            (rail("hpn0", gid("rocep26s0f0np0v", 3)),),
            "ucx",
            shell("UCX_NET_DEVICES=rocep26s0f0np0v:1", "UCX_IB_GID_INDEX=3"),
        ),
        (
            (ONE, OTHER),
            "ucx",
            shell(
                "UCX_NET_DEVICES=mlx5_4:1,mlx5_5:1",
                "unset UCX_IB_GID_INDEX  # it is one index for all ports, and theirs differ (mlx5_4:1 3, mlx5_5:1 7); "
                "UCX chooses the GID itself",
            ),
        ),
        (
            (ONE, TWO),
            "mpi",
            shell("OMPI_MCA_pml=ucx", *MPI, "UCX_NET_DEVICES=mlx5_4:1,mlx5_5:1", "UCX_IB_GID_INDEX=3"),
        ),
        ((SOCKETS, rail("hpn1")), "mpi", shell("OMPI_MCA_pml=ob1", *MPI)),
        (
            (ONE, TWO),
            "nvshmem",
            shell(
                *NVSHMEM,
                "NVSHMEM_HCA_LIST=mlx5_4:1,mlx5_5:1",
                "unset NVSHMEM_IB_GID_INDEX  # NVSHMEM 3.4 chooses the GID itself; there are mlx5_4:1 3, mlx5_5:1 3",
            ),
        ),
        (
            (rail("hpn0", devices=("ibp0",)),),
            "nvshmem",
            shell(*NVSHMEM, "NVSHMEM_HCA_LIST=ibp0:1", "NVSHMEM_HCA_PREFIX=ibp", NO_GID.format("ibp0:1")),
        ),
        ((SOCKETS,), "nvshmem", shell(NVSHMEM[0], "NVSHMEM_REMOTE_TRANSPORT=none")),
    ],
)
def test_other_libraries(hints: Hints, records: tuple[Record, ...], library: str, text: str) -> None:
    assert hints(records, "--for", library) == text


CONF = """\
NCCL_SOCKET_IFNAME=eth0
NCCL_IB_HCA==mlx5_4:1
NCCL_DEBUG=INFO
# leave NCCL_IB_GID_INDEX out: NCCL chooses the GID itself
"""
YAML = """\
env:
- name: NCCL_SOCKET_IFNAME
  value: "eth0"
- name: NCCL_IB_HCA
  value: "=mlx5_4:1"
- name: NCCL_DEBUG
  value: "INFO"
# leave NCCL_IB_GID_INDEX out: NCCL chooses the GID itself
"""


@pytest.mark.parametrize(("form", "text"), [("conf", CONF), ("yaml", YAML), ("env", nccl("=mlx5_4:1", LEAVE))])
def test_forms(hints: Hints, form: str, text: str) -> None:
    assert hints((ONE,), "--nccl-version", "2.26", "--form", form) == text


def test_yaml_is_yaml(hints: Hints) -> None:
    said = yaml.safe_load(hints((SOCKETS,), "--form", "yaml"))["env"]
    assert [(variable["name"], variable["value"]) for variable in said] == [
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_SOCKET_IFNAME", "eth0"),
        ("NCCL_IB_HCA", ""),
        ("NCCL_DEBUG", "INFO"),
    ]


def test_rails_in_their_order(hints: Hints) -> None:
    """More than ten rails are in numeric order; a port of two attachments appears once."""
    rails = tuple(rail(f"hpn{n}", gid(f"mlx5_{n}", 3)) for n in (10, 2, 0, 1))
    shared = rail("hpn11", gid("mlx5_0", 3))
    said = hints((*rails, shared))
    assert "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_10:1\n" in said


def test_ports_of_a_device(hints: Hints) -> None:
    assert "==mlx4_0:1,mlx4_0:2\n" in hints((rail("hpn0", gid("mlx4_0", 3, port=2), gid("mlx4_0", 3)),))


@pytest.mark.parametrize(
    ("device", "begins"),
    [("mlx5_4", "mlx5"), ("rocep26s0", "rocep"), ("bnxt_re0", "bnxt"), ("rxe0", "rxe"), ("0", "0")],
)
def test_prefix(device: str, begins: str) -> None:
    assert prefix(device) == begins


def test_what_sysfs_tells(tmp_path: Path) -> None:
    """The case: a device of two ports, one with a traffic class, one with an invalid class, and a missing one."""
    devices = tmp_path / "class/infiniband"
    for device, ports in (("mlx4_0", "21"), ("mlx5_4", "1"), ("mlx5_5", "1")):
        for port in ports:
            (devices / device / "ports" / port).mkdir(parents=True)
    for device, text in (("mlx5_4", "Global tclass=160\n"), ("mlx5_5", "\xff")):
        (devices / device / "tc/1").mkdir(parents=True)
        (devices / device / "tc/1/traffic_class").write_text(text)
    ports, classes = read(tmp_path, ["mlx4_0", "mlx5_4", "mlx5_5", "gone"])
    assert (ports, classes) == ({"mlx4_0": [1, 2], "mlx5_4": [1], "mlx5_5": [1]}, {"mlx5_4": 160})


def told(library: str, seen: Seen, *devices: str) -> dict[str, str]:
    attachment = {"ifname": "hpn0", "rdma": {"devices": devices, "gids": []}}
    return {line.name: line.value for line in lines(library, of([attachment], seen)) if line.value is not None}


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("nccl", "NCCL_IB_TC"),
        ("ucx", "UCX_IB_TRAFFIC_CLASS"),
        ("mpi", "UCX_IB_TRAFFIC_CLASS"),
        ("nvshmem", "NVSHMEM_IB_TRAFFIC_CLASS"),
    ],
)
def test_a_traffic_class(library: str, name: str) -> None:
    seen = Seen(classes={"a_0": 106, "a_1": 106, "a_2": 0})
    assert told(library, seen, "a_0", "a_1")[name] == "106"
    assert name not in told(library, seen, "a_0", "a_2")
    assert name not in told(library, seen, "a_0", "unknown")
    assert f"| `{name}` |" in PAGE


def test_ports_that_only_sysfs_knows() -> None:
    assert told("nccl", Seen(ports={"mlx4_0": [1, 2]}), "mlx4_0", "mlx5_0")["NCCL_IB_HCA"] == (
        "=mlx4_0:1,mlx4_0:2,mlx5_0:1"
    )


@pytest.mark.parametrize(("names", "socket"), [(None, "eth0"), (["eth0", "hpn0"], "eth0"), (["lo", "hpn0"], "hpn0")])
def test_interface_for_sockets(names: list[str] | None, socket: str) -> None:
    assert told("nccl", Seen(names), "mlx5_0")["NCCL_SOCKET_IFNAME"] == socket
