"""The users of RDMA devices, from the kernel's answers and from /proc."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rdma_answers import CQ_GET, MR_GET, QP_GET, Answers, Owner

from base.kernel import netns, rdma_netlink
from base.protocol.spec import Key
from base.state.pod import Identity
from base.state.record import Record
from hardware import rdma_users
from hardware.rdma_users import OF_HOST, OF_KERNEL, UNKNOWN, User, pod_cgroup

UID, OTHER = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0", "ffffffff-4f50-6172-8394-a5b6c7d8e9f0"
STATIC = "0b1c2d3e4f5061728394a5b6c7d8e9f0"
SLICE = f"kubepods-burstable-pod{UID.replace('-', '_')}.slice"
SCOPE = f"cri-containerd-{'1a' * 32}.scope"
# Lines of /proc/PID/cgroup.
OF_POD = {
    "systemd": f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/{SCOPE}",
    "systemd, guaranteed": f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/{SCOPE}",
    "cgroupfs": f"0::/kubepods/besteffort/pod{UID}/{'1a' * 32}",
    "cgroupfs, guaranteed": f"0::/kubepods/pod{UID}/{'1a' * 32}",
    "kind": f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-{SLICE}/{SCOPE}",
    "version 1": f"12:pids:/kubepods/pod{UID}/x\n3:rdma:/kubepods/pod{UID}/x\n1:name=systemd:/\n0::/",
    "from a container's cgroup namespace": f"0::/../../../kubepods-burstable.slice/{SLICE}/{SCOPE}",
    "from one of the same class": f"0::/../../{SLICE}/{SCOPE}",
    "in an ended cgroup": f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE} (deleted)",
    "its own below": f"0::/kubepods/burstable/pod{UID}/x/kubepods/burstable/pod{OTHER}/x",
    "its own slice below": f"0::/kubepods.slice/{SLICE}/kubepods-burstable-pod{OTHER.replace('-', '_')}.slice",
}
OF_NO_POD = {
    "a service": "0::/system.slice/kubelet.service",
    "the first": "0::/",
    "podman's, with a name of a pod below": f"0::/machine.slice/libpod-{'1a' * 32}.scope/kubepods.slice/{SLICE}",
    "a user's": f"0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/{SLICE}",
    "kubelet's own": "0::/kubepods.slice/kubepods-burstable.slice",
    "of two pods": f"2:cpu:/kubepods/pod{UID}/x\n1:pids:/kubepods/pod{OTHER}/x",
    "podman's, with a line in its name": f"0::/machine.slice/libpod.scope/\x0c0::/kubepods/pod{UID}/x",
    "podman's, with a line of Unicode's": f"0::/machine.slice/libpod.scope/\u20280::/kubepods/pod{UID}/x",
    "no line of the kernel": "0::",
}


@pytest.mark.parametrize("lines", OF_POD.values(), ids=OF_POD)
def test_a_cgroup_of_a_pod(lines: str) -> None:
    assert pod_cgroup(f"{lines}\n")[0] == UID


@pytest.mark.parametrize("lines", OF_NO_POD.values(), ids=OF_NO_POD)
def test_other_cgroups(lines: str) -> None:
    assert pod_cgroup(f"{lines}\n")[0] == ""


def test_a_name_that_is_no_text(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    """A pod may name cgroups below its own by any bytes."""
    (proc / f"{os.getpid()}/cgroup").write_bytes(f"{OF_POD['cgroupfs']}/".encode() + b"\xff\n")
    assert found(monkeypatch, {QP_GET: [os.getpid()]}) == {("mlx5_0", User(uid=UID)): {"qp": 1}}


def test_a_name_with_a_carriage_return(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    """It begins no line."""
    puts(proc, os.getpid(), f"0::/machine.slice/libpod.scope/\r0::/kubepods/pod{UID}/x")
    assert found(monkeypatch, {QP_GET: [os.getpid()]}) == {("mlx5_0", OF_HOST): {"qp": 1}}


def test_a_static_pods_uid_is_a_digest() -> None:
    assert pod_cgroup(f"0::/kubepods.slice/kubepods-pod{STATIC}.slice/{SCOPE}\n")[0] == STATIC


CONTROLLERS = {
    "systemd": f"kubepods.slice/kubepods-burstable.slice/{SLICE}",
    "cgroupfs": f"kubepods/besteffort/pod{UID}",
    "version 1": f"rdma/kubepods/pod{UID}",
    "from a container's cgroup namespace": "",
    "its own below": f"kubepods/burstable/pod{UID}",
}


@pytest.mark.parametrize("case", CONTROLLERS)
def test_the_folder_of_a_pods_controller(case: str) -> None:
    assert pod_cgroup(f"{OF_POD[case]}\n")[1] == CONTROLLERS[case]


@pytest.mark.parametrize("files", [(), ("current",), ("current", "peak")], ids=str)
def test_what_the_controller_charges(
    monkeypatch: pytest.MonkeyPatch, proc: Path, tmp_path: Path, files: tuple[str, ...]
) -> None:
    """A kernel may have one of the files, both or none; they list the devices that the pod has used."""
    monkeypatch.setattr(rdma_users, "_CGROUPS", tmp_path)
    folder = tmp_path / CONTROLLERS["systemd"]
    folder.mkdir(parents=True)
    for number, file in enumerate(files, 1):
        lines = f"mlx5_01 hca_handle=9 hca_object=99\nmlx5_0 hca_handle={number} hca_object={number}00\n"
        (folder / f"rdma.{file}").write_text(lines)
    answers = Answers({"mlx5_0": {QP_GET: [os.getpid()]}, "m.*": {QP_GET: [os.getpid(), "mad"]}})
    charged = dict(zip(("objects", "objects_peak"), (100, 200), strict=True)) if len(files) == 2 else {}
    charged = {"objects": 100} if len(files) == 1 else charged
    assert found(monkeypatch, answers) == {
        ("mlx5_0", User(uid=UID)): {"qp": 1, **charged},
        ("m.*", User(uid=UID)): {"qp": 1},
        ("m.*", OF_KERNEL): {"qp": 1},
    }
    assert (proc / "self").exists()


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc with this process, in a pod's cgroup."""
    monkeypatch.setattr(rdma_users, "_PROC", tmp_path)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tx\nNSpid:\t{os.getpid()}\n")
    puts(tmp_path, os.getpid(), OF_POD["systemd"])
    return tmp_path


def puts(proc: Path, thread: int, lines: str) -> None:
    (proc / f"{thread}").mkdir(exist_ok=True)
    (proc / f"{thread}/cgroup").write_text(f"{lines}\n")


@pytest.fixture
def child() -> Iterator[int]:
    """A process that is older than what follows."""
    with subprocess.Popen(["sleep", "3000"]) as it:
        while netns.age(f"{it.pid}") < 0.05:
            os.sched_yield()
        yield it.pid
        it.kill()


def record(pod: str, uid: str, **keys: Any) -> Record:
    args = f"IgnoreUnknown=1;K8S_POD_UID={uid}" if uid else ""
    identity = Identity(*keys.pop("namespace", (1, 1)))
    return Record("n", Key("c", "hpn0"), "/n", identity, "sriov", link={}, config={}, args=args, pod=pod, **keys)


def found(
    monkeypatch: pytest.MonkeyPatch, answers: Answers | dict[int, list[Owner]], *records: Record
) -> dict[tuple[str, User], dict[str, int]]:
    """The users with their numbers; of one device if only its resources are given."""
    kernel = answers if isinstance(answers, Answers) else Answers({"mlx5_0": answers})
    monkeypatch.setattr(rdma_netlink, "_socket", lambda: kernel)
    return {key: dict(numbers) for key, numbers in rdma_users.uses(records, pytest.fail).items()}


def test_each_users_numbers(monkeypatch: pytest.MonkeyPatch, proc: Path, child: int) -> None:
    """The kernel's own have no thread, and a device has more than one message holds."""
    mine = os.getpid()
    puts(proc, child, OF_NO_POD["a service"])
    (proc / f"{child}/ns").symlink_to("/proc/self/ns")
    both = {
        "mlx5_0": {QP_GET: ["ib_core", mine, mine, child], CQ_GET: ["ib_core", mine], MR_GET: [mine] * 5},
        "mlx5_1": {QP_GET: [mine], MR_GET: [child]},
    }
    pod = User("ml", "train-0", UID)
    assert found(monkeypatch, Answers(both), record("ml/train-0", UID), record("ml/other", OTHER)) == {
        ("mlx5_0", OF_KERNEL): {"qp": 1, "cq": 1},
        ("mlx5_0", pod): {"qp": 2, "cq": 1, "mr": 5},
        ("mlx5_0", OF_HOST): {"qp": 1},
        ("mlx5_1", pod): {"qp": 1},
        ("mlx5_1", OF_HOST): {"mr": 1},
    }


@pytest.mark.usefixtures("proc")
@pytest.mark.parametrize("record", [record("ml/b", OTHER), record("ml/a", UID, boot="older")], ids=["another", "older"])
def test_a_pod_without_an_attachment(monkeypatch: pytest.MonkeyPatch, record: Record) -> None:
    """As one with the host's network: only its UID is known."""
    assert found(monkeypatch, {QP_GET: [os.getpid()]}, record) == {("mlx5_0", User(uid=UID)): {"qp": 1}}
    assert User(uid=UID).title == UID


@pytest.mark.parametrize(("cookie", "user"), [(5, User("", "web")), (4, OF_HOST)], ids=["the same", "an earlier one"])
def test_a_pod_of_another_runtime(monkeypatch: pytest.MonkeyPatch, proc: Path, cookie: int, user: User) -> None:
    """Its namespace is an attachment's; the inode's number alone may be an ended namespace's."""
    puts(proc, os.getpid(), "0::/machine.slice/libpod-1a.scope")
    (proc / f"{os.getpid()}/ns").symlink_to("/proc/self/ns")
    monkeypatch.setattr(netns, "cookie_of", lambda _: 5)
    inode = os.stat("/proc/self/ns/net").st_ino
    assert found(monkeypatch, {CQ_GET: [os.getpid()]}, record("web", "", namespace=(inode, cookie))) == {
        ("mlx5_0", user): {"cq": 1}
    }


def test_a_namespace_that_may_not_be_read_is_not_the_hosts(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    puts(proc, os.getpid(), "0::/machine.slice/libpod-1a.scope")
    assert found(monkeypatch, {QP_GET: [os.getpid()]}, record("web", "")) == {("mlx5_0", UNKNOWN): {"qp": 1}}


@pytest.mark.usefixtures("proc")
def test_a_thread_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names none, or it ends before its cgroup is read."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert found(monkeypatch, {QP_GET: [None, ended.pid], MR_GET: [0]}) == {("mlx5_0", UNKNOWN): {"qp": 2, "mr": 1}}


def test_a_number_that_another_thread_got_meanwhile(monkeypatch: pytest.MonkeyPatch, proc: Path) -> None:
    """A thread that began after the list did has the number of an ended one."""
    resources, young = dict[int, list[Owner]]({QP_GET: [os.getpid()], CQ_GET: []}), list[subprocess.Popen[bytes]]()

    def begin() -> None:
        if not young:
            young.append(subprocess.Popen(["sleep", "3000"]))
            puts(proc, young[0].pid, OF_POD["systemd"])
            resources[CQ_GET].append(young[0].pid)

    answers = found(monkeypatch, Answers({"m": resources}, after=begin), record("ml/a", UID))
    young[0].kill()
    assert (young[0].wait() != 0, answers) == (
        True,
        {("m", User("ml", "a", UID)): {"qp": 1}, ("m", UNKNOWN): {"cq": 1}},
    )


@pytest.mark.parametrize("namespaces", ["30000\t7", "7\t1"])
def test_a_proc_of_another_pid_namespace(monkeypatch: pytest.MonkeyPatch, proc: Path, namespaces: str) -> None:
    """Its numbers are others' numbers, so no pod is named."""
    (proc / "self/status").write_text(f"Name:\tx\nNSpid:\t{namespaces}\n")
    said = list[str]()
    monkeypatch.setattr(rdma_netlink, "_socket", lambda: Answers({"m": {QP_GET: [os.getpid(), "mad"]}}))
    uses = rdma_users.uses([record("ml/a", UID)], said.append)
    assert uses == {("m", UNKNOWN): {"qp": 1}, ("m", OF_KERNEL): {"qp": 1}}
    assert said == [rdma_users._REMARK]


@pytest.mark.usefixtures("proc")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_container_without_the_hosts_processes(monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    """It gets no numbers of others' threads, and reports that; in the first namespace these threads have ended."""
    own = os.stat("/proc/self/ns/pid").st_ino
    monkeypatch.setattr(rdma_users, "_INITIAL", own if is_first else own + 1)
    monkeypatch.setattr(rdma_netlink, "_socket", lambda: Answers({"m": {QP_GET: [None]}}))
    said = list[str]()
    assert rdma_users.uses([], said.append) == {("m", UNKNOWN): {"qp": 1}}
    assert said == ([] if is_first else [rdma_users._REMARK])


@pytest.mark.usefixtures("proc")
def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a device's numbers would be wrong."""
    kernel = Answers({"m": {QP_GET: ["mad"]}, "n": {QP_GET: ["mad"]}}, refused={"m"})
    assert found(monkeypatch, kernel) == {("n", OF_KERNEL): {"qp": 1}}


def test_a_kernel_without_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Answers:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(rdma_netlink, "_socket", none)
    assert rdma_users.uses([], pytest.fail) == {}
