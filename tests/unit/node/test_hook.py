"""The hook that raises the limit of locked memory, in CDI files; and what the policy file allows of it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.node_host import exclusive, host, resource, vf

from base.protocol import memlock
from base.protocol.errors import InvalidConfig
from base.protocol.memlock import Limit
from base.state import policy
from base.state.claims import Claim, ClaimedDevice
from hardware.model import Device
from node.dra.claims import cdi as claim_files
from node.model import Verbs
from node.offer import answers, cdi, hook

UID = "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f"
PLUGIN = "/opt/cni/bin/hpn"
CDI = "var/run/cdi"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host without a policy file, whose runtime finds hpn."""
    monkeypatch.setattr(policy, "FILE", f"{tmp_path}/policy.json")
    hook.LAUNCHER.found(Path("/opt/cni/bin"), "")
    yield host(tmp_path)
    hook.LAUNCHER.path = ""


def permit(root: Path, text: str) -> None:
    file = root / "policy.json"
    file.write_text(text)
    file.chmod(0o600)


def made(*words: str) -> dict[str, Any]:
    args = ["hpn", "hook", "memlock", *words]
    return {"hookName": "createRuntime", "path": PLUGIN, "args": args, "env": ["CNI_COMMAND=VERSION"], "timeout": 5}


def found(root: Path, *devices: Device, **fields: Any) -> list[list[dict[str, Any]]]:
    """The hooks of each device in the resource's file."""
    answers.publish([exclusive(*devices, cdi=True, **fields)], root)
    (file,) = (root / CDI).iterdir()
    return [one["containerEdits"].get("hooks", []) for one in json.loads(file.read_text())["devices"]]


@pytest.mark.parametrize(
    ("asked", "most", "hooks"),
    [
        ("", "", [made("unlimited")]),
        ("", '"unlimited"', [made("unlimited")]),
        ("", "4096", [made("4096")]),
        ("", '"keep"', []),
        ("unlimited", "", [made("unlimited", "required")]),
        ("unlimited", "4096", [made("4096", "required")]),
        (4096, "", [made("4096", "required")]),
        (4096, "4095", [made("4095", "required")]),
        (4096, "4097", [made("4096", "required")]),
        (4096, '"keep"', []),
        ("keep", '"unlimited"', []),
        # A broken file raises nothing.
        ("unlimited", "0", []),
        ("unlimited", "true", []),
        ("", "4096}", []),
    ],
)
def test_which_limit(root: Path, asked: Limit, most: str, hooks: list[Any]) -> None:
    """Only a limit that somebody asked for may keep a container from starting."""
    if most:
        permit(root, f'{{"memlockMost": {most}}}')
    assert found(root, vf(1), memlock=asked) == [hooks]


def test_which_devices(root: Path) -> None:
    """Without a word in the file those with RDMA, also if their nodes come with every device; with one, all."""
    plain = vf(2, driver="vfio-pci", rdma=())
    (root / "sys/bus/pci/devices/0000:3b:00.2/iommu_group").symlink_to("../../12")
    assert found(root, vf(1), plain) == [[made("unlimited")], []]
    assert found(root, vf(1), plain, memlock=4096) == [[made("4096", "required")]] * 2
    assert found(root, vf(1), plain, verbs=Verbs.DIRECTORY) == [[made("unlimited")]] * 2
    assert found(root, plain, verbs=Verbs.NONE) == [[]]


def test_where_the_runtime_finds_it(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a program that can run there is no hook: the runtime would start no container."""
    usual, own = tmp_path / "bin/hpn", tmp_path / "hpn"
    monkeypatch.setattr(hook, "PLUGIN", f"{usual}")
    usual.parent.mkdir()

    def path(folder: Path | None) -> str:
        hook.LAUNCHER.found(folder, f"{own}")
        return hook.LAUNCHER.path

    assert path(Path("/var/lib/cni/bin")) == "/var/lib/cni/bin/hpn"  # which this container may not see
    assert path(None) == ""
    assert found(root, vf(1)) == [[]]
    of = [resource(memlock=limit, source=f"resources[{n}]") for n, limit in enumerate(("", "keep", 4096))]
    (sentence,) = hook.LAUNCHER.without(of)
    assert sentence.startswith(
        f"resources[2].memlock 4096 has no effect, because {usual} cannot run on this node; install"
    )
    own.touch(0o755)
    assert path(None) == f"{own}"
    assert [*hook.LAUNCHER.without(of)] == []
    usual.symlink_to("missing")
    assert path(None) == f"{own}"
    usual.unlink()
    usual.touch(0o755)
    assert path(None) == f"{usual}"


def test_claims(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hook for each request, because a container gets all devices of a request."""
    monkeypatch.setattr(claim_files, "FOLDER", f"{root}/{CDI}")
    one = ClaimedDevice("a", "p", "d", "", "0000:3b:00.2", "vf", "example.com/a", "chain")
    with_rdma = replace(one, nodes=("/dev/infiniband/uverbs1",))
    devices = [one, with_rdma, replace(with_rdma, request="b", memlock=4096), replace(one, request="c")]
    claim_files.write(Claim(UID, "default", "c", (), tuple(devices)))
    (file,) = (root / CDI).iterdir()
    found = [device["containerEdits"].get("hooks", []) for device in json.loads(file.read_text())["devices"]]
    assert found == [[made("unlimited")], [], [made("4096", "required")], []]


def test_no_container_needs_it_after_its_removal(root: Path) -> None:
    """Files of claims too; another program's file stays, and one that no runtime can read."""
    folder = root / "run/cdi"
    folder.mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var/run").symlink_to("../run")
    before = found(root, vf(1), vf(2))
    assert before == [[made("unlimited")]] * 2
    edits = {"mounts": [], "hooks": [made("unlimited")]}
    claim = {"kind": "hpn.io/claim", "devices": [{"name": "u-0", "containerEdits": edits}]}
    others = {"hpn-x.json": '{"kind": "nvidia.com/gpu", "devices": [{"containerEdits": {"hooks": [1]}}]}'}
    others |= {"hpn-y.json": '{"kind": "hpn.io/net", "devices', "hpn-z.json": '{"kind": "hpn.io/net", "devices": [1]}'}
    for name, text in others.items():
        (folder / name).write_text(text)
    (folder / "hpn-claim-u.json").write_text(json.dumps(claim))
    changed = [f"{folder}/hpn-claim-u.json", f"{folder}/hpn-nvidia.com_rail-0.json"]
    assert cdi.release(root) == changed
    assert cdi.release(root) == []
    for path in changed:
        for device in json.loads(Path(path).read_text())["devices"]:
            assert device["containerEdits"].keys() in ({"deviceNodes"}, {"mounts"})
    assert {name: (folder / name).read_text() for name in others} == others


def test_no_folder(tmp_path: Path, root: Path) -> None:
    """No link leads out of the root."""
    assert cdi.release(tmp_path) == []
    found(root, vf(1))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run").symlink_to(root / "var/run")
    assert cdi.release(tmp_path / "other") == []


def test_what_the_policy_file_does_not_allow(root: Path) -> None:
    of = [resource(memlock=limit, source=f"resources[{n}]") for n, limit in enumerate(("", "keep", 4096, "unlimited"))]
    assert hook.conflicts(of) == ()
    permit(root, '{"memlockMost": 4096}')
    (sentence,) = hook.conflicts(of)
    assert sentence.startswith(f"resources[3].memlock unlimited is more than memlockMost 4096 in {root}/policy.json")
    permit(root, '{"memlockMost": "keep"}')
    assert [one.split()[0] for one in hook.conflicts(of)] == ["resources[2].memlock", "resources[3].memlock"]
    permit(root, '{"memlockMost": "1Gi"}')
    (sentence,) = hook.conflicts(of)
    assert sentence.startswith("no container's limit of locked memory is raised: the policy file ")
    assert 'memlockMost "1Gi" is not a limit of locked memory; write unlimited, keep, or bytes' in sentence


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "1", "all", "", [], {}, 10**18, "Unlimited"])
def test_no_limit(root: Path, value: object) -> None:
    assert memlock.why_refused(value)
    permit(root, json.dumps({"memlockMost": value}))
    with pytest.raises(InvalidConfig):
        policy.memlock_most()
