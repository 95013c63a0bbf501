"""hpn install --api-server: the node's kubeconfig for claiming blocks of addresses."""

import base64
import json
from pathlib import Path

import pytest
from support.installed import ROOT, program, tree

from base.kubernetes import credentials
from base.protocol.errors import InvalidConfig
from ctl.installation import layout
from ctl.installation.command import answer_install, drop_credential, install, uninstall

TOKEN = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b"{}", json.dumps({"kubernetes.io": {"node": {"name": "node1"}}}).encode(), b"signature")
)


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source tree's units; an earlier test may have prepended to sys.path."""
    monkeypatch.syspath_prepend(ROOT)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The directory of kubelet's projected credential."""
    made = tmp_path / "pods" / "uid" / "credential"
    (made / "..data").mkdir(parents=True)
    for name, text in (("token", TOKEN), ("ca.crt", "authority")):
        (made / "..data" / name).write_text(text)
        (made / name).symlink_to(f"..data/{name}")
    return str(made)


def put(root: Path, tmp_path: Path, server: str, folder: str) -> list[str]:
    return install(root, program(tmp_path), {}, "", more=[layout.kubeconfig(server, folder)])


@pytest.mark.parametrize(
    ("server", "url"), [("10.96.0.1:443", "https://10.96.0.1:443"), ("fd00::1:443", "https://[fd00::1]:443")]
)
def test_it_is_read_as_written(root: Path, tmp_path: Path, folder: str, server: str, url: str) -> None:
    said = put(root, tmp_path, server, folder)
    assert f"put /{layout.KUBECONFIG}" in said
    found = credentials.read(str(root / layout.KUBECONFIG))
    assert found.server == url
    assert found.node() == "node1"
    assert found.tls().ca == b"authority"
    assert found.headers() == {"Authorization": f"Bearer {TOKEN}"}
    assert (root / layout.KUBECONFIG).stat().st_mode & 0o777 == 0o644  # it contains no secret
    assert put(root, tmp_path, server, folder)[0] == "it is already installed"


def test_the_daemonset_wants_none_any_more(root: Path, tmp_path: Path, folder: str) -> None:
    """clusterAddresses.token and claims.enabled were switched off; the earlier pod's directory may still be there."""
    (root / folder.lstrip("/")).mkdir(parents=True)
    put(root, tmp_path, "10.96.0.1:443", folder)
    remove = f"remove /{layout.KUBECONFIG} (of a pod that is not needed any more)"
    assert install(root, program(tmp_path), {}, "")[0] != remove
    assert install(root, program(tmp_path), {layout.LEAVE: layout.MARK}, "")[0] == remove
    assert layout.KUBECONFIG not in tree(root)


def test_its_pod_is_gone(root: Path, tmp_path: Path, folder: str) -> None:
    put(root, tmp_path, "10.96.0.1:443", folder)
    text = (root / layout.KUBECONFIG).read_text()
    inside = root / folder.lstrip("/")
    inside.mkdir(parents=True)
    assert drop_credential(root) == []
    inside.rmdir()
    assert drop_credential(root) == [f"remove /{layout.KUBECONFIG} (of a pod that is not needed any more)"]
    assert layout.KUBECONFIG not in tree(root)
    for others in (text.partition("\n")[2], text.replace("/pods/", "/etc/")):
        (root / layout.KUBECONFIG).write_text(others)
        assert drop_credential(root) == []
        assert layout.KUBECONFIG in tree(root)


def test_another_pods(root: Path, tmp_path: Path, folder: str) -> None:
    put(root, tmp_path, "10.96.0.1:443", "/of/a/pod/of/before")
    said = put(root, tmp_path, "10.96.0.1:443", folder)
    assert f"put /{layout.KUBECONFIG} (instead of another version)" in said
    assert credentials.read(str(root / layout.KUBECONFIG)).tls().ca == b"authority"


def test_it_goes_with_the_rest(root: Path, tmp_path: Path, folder: str) -> None:
    put(root, tmp_path, "10.96.0.1:443", folder)
    assert f"remove /{layout.KUBECONFIG}" in uninstall(root)
    assert tree(root) == {}


def test_somebody_elses_stays(root: Path, tmp_path: Path, folder: str) -> None:
    (root / layout.KUBECONFIG).parent.mkdir(parents=True)
    (root / layout.KUBECONFIG).write_text("mine")
    with pytest.raises(InvalidConfig, match=r"hpn.kubeconfig is not a file of hpn install"):
        put(root, tmp_path, "10.96.0.1:443", folder)
    install(root, program(tmp_path), {}, "")
    uninstall(root)
    assert tree(root) == {layout.KUBECONFIG: "mine"}


@pytest.mark.parametrize(
    ("server", "folder", "why"),
    [
        ("10.96.0.1", "/a", "--api-server '10.96.0.1' is not HOST:PORT"),
        ("$(KUBERNETES_SERVICE_HOST):x", "/a", "is not HOST:PORT"),
        (":443", "/a", "is not HOST:PORT"),
        ("a:443", "b", "--credential 'b' is not an absolute path"),
    ],
)
def test_what_is_refused(server: str, folder: str, why: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        layout.kubeconfig(server, folder)
    assert why in refused.value.msg


def test_one_is_nothing_without_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        answer_install(["--api-server", "a:443"], "/program", "")
    assert ended.value.code == 2
    assert "--api-server and --credential go together" in capsys.readouterr().err
