"""hpn hook memlock: the launcher as a runtime's hook, which trusts only the runtime's stdin."""

import json
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from system.machine import Tools

NOBODY = 65534
# Below the hard limit of a machine without CAP_SYS_RESOURCE; the lab raises more.
LITTLE, MUCH = 64 << 10, 1 << 20
UNLIMITED = "unlimited"
HARD = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]


@contextmanager
def process() -> Iterator[int]:
    """A process with little memory to lock, as a container's is before its program starts."""

    with subprocess.Popen(["sleep", "3600"]) as it:
        try:
            resource.prlimit(it.pid, resource.RLIMIT_MEMLOCK, (LITTLE, HARD))
            yield it.pid
        finally:
            it.kill()


@pytest.fixture
def container(tools: Tools) -> Iterator[int]:
    with process() as pid:
        yield pid


def limits(pid: int) -> tuple[int, int]:
    return resource.prlimit(pid, resource.RLIMIT_MEMLOCK)


def state(pid: object, **more: object) -> bytes:
    """As runc writes it."""
    about = {"ociVersion": "1.2.1", "id": "c1", "status": "creating", "pid": pid, "bundle": "/run/containerd/c1"}
    return json.dumps({**about, "annotations": {"io.kubernetes.cri.container-name": "c"}, **more}).encode()


def hook(tools: Tools, given: bytes | int, *words: str, user: int | None = None) -> tuple[int, str]:
    """The exit status and stderr.  The unpacked program is out of reach, and CNI_COMMAND as hpn node sets it."""
    environ = {"HPN_PROGRAM_DIR": "/proc/nowhere", "CNI_COMMAND": "VERSION"}
    stdin = {"input": given} if isinstance(given, bytes) else {"stdin": given}
    argv = [tools.hpn, "hook", *(words or ("memlock", UNLIMITED))]
    done = subprocess.run(argv, env=environ, capture_output=True, check=False, timeout=60, user=user, **stdin)  # type: ignore[call-overload]
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("words", [(), ("required",)])
def test_it_raises_the_limit(tools: Tools, container: int, words: tuple[str, ...]) -> None:
    assert hook(tools, state(container), "memlock", f"{MUCH}", *words) == (0, "")
    assert limits(container) == (MUCH, HARD)


def test_it_lowers_no_limit(tools: Tools, container: int) -> None:
    """Of several devices of a container, the largest limit holds; and a runtime's own may be larger."""
    for value in (LITTLE - 1, MUCH, MUCH - 1):
        assert hook(tools, state(container), "memlock", f"{value}") == (0, "")
    assert limits(container) == (MUCH, HARD)


def test_what_a_pods_author_writes(tools: Tools, container: int) -> None:
    """CRI-O puts a pod's annotations into the state.  None of them names another process."""
    with process() as other:
        texts = [f'","pid":{other},"', f'\\","pid":{other}', "\\", "}", f'{{"pid":{other}}}', "\0\n", '"pid"']
        annotations = {**{f"a{at}": text for at, text in enumerate(texts)}, "pid": other, f'","pid":{other},"': "x"}
        more = {"annotations": annotations, "list": [{"pid": other}, ["pid", other]], "pids": other, "\\pid": other}
        for given in (state(container, **more), json.dumps({**more, "pid": container}, indent=1).encode()):
            assert hook(tools, given, "memlock", f"{MUCH}") == (0, "")
        assert limits(other) == (LITTLE, HARD)
    assert limits(container) == (MUCH, HARD)


# PID stands for the container's.
HOSTILE = {
    "nothing": b"",
    "no object": b'[{"pid":PID}]',
    "no pid": b'{"ociVersion":"1.2.1"}',
    "zero": b'{"pid":0}',
    "negative": b'{"pid":-PID}',
    "init": b'{"pid":1}',
    "text": b'{"pid":"PID"}',
    "a list": b'{"pid":[PID]}',
    "a fraction": b'{"pid":PID.5}',
    "an exponent": b'{"pid":PIDe1}',
    "octal": b'{"pid":0PID}',
    "too large": b'{"pid":4194305}',
    "far too large": b'{"pid":18446744073709551617PID}',
    "twice": b'{"pid":PID,"pid":PID}',
    "inside": b'{"inner":{"pid":PID}}',
    "a longer name": b'{"pidx":PID}',
    "a shorter name": b'{"pi":PID}',
    "cut short": b'{"pid":PID',
    "an open text": b'{"pid":PID,"x":"}',
    "an open text at its end": b'{"pid":PID,"x":"\\',
    "more behind it": b'{"pid":PID}{"pid":PID}',
    "an end too many": b'}{"pid":PID}',
    "a zero byte": b'{"pid":PID}\0',
    "no JSON": b"pid PID",
    "huge": b'{"pid":PID,"x":"' + b"x" * (4 << 20) + b'"}',
    "deep": b'{"pid":PID,"x":' + b"[" * (1 << 20),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_state(tools: Tools, container: int, name: str) -> None:
    """The limit stays.  That ends the container only if the file demands the limit."""
    given = HOSTILE[name].replace(b"PID", f"{container}".encode())
    for words, code in ((("memlock", UNLIMITED), 0), (("memlock", UNLIMITED, "required"), 1)):
        status, message = hook(tools, given, *words)
        assert (status, message.startswith("hpn: hook memlock unlimited: the container's state ")) == (code, True)
        assert message.count("\n") == 1
    assert limits(container) == (LITTLE, HARD)
    assert limits(os.getpid()) == resource.getrlimit(resource.RLIMIT_MEMLOCK)


def test_a_large_state(tools: Tools, container: int) -> None:
    """Kubernetes allows 256 KiB of annotations, and a runtime escapes them twice."""
    given = state(container, annotations={"a": '\\"' * (1 << 19)})
    assert hook(tools, given, "memlock", f"{MUCH}") == (0, "")
    assert limits(container)[0] == MUCH


def test_its_own_process_and_the_runtimes(tools: Tools) -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (LITTLE, before[1]))
        assert hook(tools, state(os.getpid()), "memlock", UNLIMITED, "required")[0] == 1
        assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == LITTLE
        argv = [tools.hpn, "hook", "memlock", UNLIMITED, "required"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as it:
            assert b"no pid of a container" in it.communicate(state(it.pid), 60)[1]
            assert it.returncode == 1
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def test_a_process_that_is_gone(tools: Tools) -> None:
    with process() as pid:
        pass
    why = "hpn: hook memlock unlimited: the container's limit cannot be read: No such process\n"
    assert hook(tools, state(pid)) == (0, why)
    assert hook(tools, state(pid), "memlock", UNLIMITED, "required") == (1, why)


def test_without_the_privilege(tools: Tools, container: int, tmp_path: Path) -> None:
    copy = tmp_path / "hpn"
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    copy.write_bytes(tools.hpn.read_bytes())
    copy.chmod(0o755)
    for words, code in ((("memlock", UNLIMITED), 0), (("memlock", UNLIMITED, "required"), 1)):
        status, message = hook(Tools(copy, tools.peers, tmp_path), state(container), *words, user=NOBODY)
        assert (status, "cannot be read: Operation not permitted" in message) == (code, True)
    assert limits(container) == (LITTLE, HARD)


@pytest.mark.parametrize("words", [("memlock", UNLIMITED), ("memlock", UNLIMITED, "required")])
def test_a_stdin_that_never_ends(tools: Tools, container: int, words: tuple[str, ...]) -> None:
    """A runtime that has to kill its hook fails the container, so the hook ends before."""
    ours, its = os.pipe()
    try:
        os.write(its, state(container))
        status, message = hook(tools, ours, *words)
    finally:
        os.close(ours)
        os.close(its)
    assert (status, "does not end" in message) == (len(words) - 2, True)
    assert limits(container) == (LITTLE, HARD)


def test_a_stdin_that_is_no_state(tools: Tools, tmp_path: Path) -> None:
    closed = f"exec <&-; exec {tools.hpn} hook memlock unlimited required"
    done = subprocess.run(["sh", "-c", closed], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "no pid" in done.stderr) == (1, True)
    for path, why in (("/dev/zero", "longer than 4 MiB"), (tmp_path, "cannot be read")):
        folder = os.open(path, os.O_RDONLY)
        status, message = hook(tools, folder, "memlock", UNLIMITED, "required")
        os.close(folder)
        assert (status, why in message) == (1, True)


@pytest.mark.parametrize(
    "words",
    ["", "memlock", "memlock 0", "memlock -1", "memlock 1k", "memlock 18446744073709551616", "memlock keep", "rdma 1"],
)
def test_other_words(tools: Tools, container: int, words: str) -> None:
    """A later version's file may name a hook that this version does not have."""
    for more, code in (((), 0), (("required",), 1)):
        argv = [tools.hpn, "hook", *words.split(), *more]
        done = subprocess.run(argv, input=state(container), capture_output=True, check=False, timeout=60)
        assert (done.returncode, b"hpn hook memlock" in done.stderr, done.stdout) == (code, True, b"")
    assert limits(container) == (LITTLE, HARD)


def test_an_older_version(tools: Tools, container: int) -> None:
    """It ignores the words, and answers VERSION: the container starts, with the runtime's limit."""
    environ = {**os.environ, "CNI_COMMAND": "VERSION"}
    done = subprocess.run(
        [tools.hpn], env=environ, input=state(container), capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, b"supportedVersions" in done.stdout) == (0, True)
    assert limits(container) == (LITTLE, HARD)
