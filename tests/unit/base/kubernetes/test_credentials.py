"""Kubeconfigs as written by kubeadm, kubelet and people: the node's identity, the trusted server, and refused keys."""

import base64
import json
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.tls_server import Authority, authority

from base.kubernetes import credentials, exec_credential, tls
from base.protocol.errors import BackendRefused, InvalidConfig, Unreachable

# kubeadm writes this for kubelet.
KUBEADM = """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Y2E=
    server: https://10.0.0.1:6443
  name: default-cluster
contexts:
- context:
    cluster: default-cluster
    namespace: default
    user: default-auth
  name: default-context
current-context: default-context
kind: Config
preferences: {}
users:
- name: default-auth
  user:
    client-certificate: pki/kubelet-client-current.pem
    client-key: pki/kubelet-client-current.pem
"""


def config(user: dict[str, Any], cluster: dict[str, Any] | None = None, name: str = "u") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": name}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": "other", "user": {"token": "not this"}}, {"name": name, "user": user}],
    }


def write(folder: Path, document: object) -> str:
    file = folder / "kubeconfig"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(file)


def token(**claims: Any) -> str:
    """Return a token as the API server issues it; no test verifies the signature."""
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({}, claims, "signature")
    )


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


def test_kubelets_own(signer: Authority, tmp_path: Path) -> None:
    cert, key = signer.sign("/O=system:nodes/CN=system:node:node-1.example.com", until="20301231235959Z")
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/kubelet-client-2026.pem").write_bytes(cert + key)
    (tmp_path / "pki/kubelet-client-current.pem").symlink_to("kubelet-client-2026.pem")
    found = credentials.read(write(tmp_path, KUBEADM))
    assert found.server == "https://10.0.0.1:6443"
    assert found.node() == "node-1.example.com"
    assert found.tls().ca == b"ca"
    assert found.tls().cert == found.tls().key == cert + key
    assert found.headers() == {}
    assert found.ended() == 1924991999  # date -d 2030-12-31T23:59:59Z +%s


def test_a_certificate_is_read_again(signer: Authority, tmp_path: Path) -> None:
    """kubelet writes a new file and moves its link there."""
    (tmp_path / "pki").mkdir()
    current = tmp_path / "pki/kubelet-client-current.pem"
    current.write_bytes(b"first")
    found = credentials.read(write(tmp_path, KUBEADM))
    assert found.tls().cert == b"first"
    current.write_bytes(b"second")
    assert found.tls().cert == b"second"


def test_inline_certificates(tmp_path: Path) -> None:
    inline = {"client-certificate-data": "Y2VydA==", "client-key-data": "a2V5", "client-key": "/not/there"}
    cluster = {"certificate-authority-data": "Y2E=", "tls-server-name": "kubernetes"}
    found = credentials.read(write(tmp_path, config(inline, cluster))).tls()
    assert (found.ca, found.cert, found.key, found.server_name) == (b"ca", b"cert", b"key", "kubernetes")


def test_a_token_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    found = credentials.read(write(tmp_path, config({"tokenFile": "token", "token": "old"})))
    assert found.headers() == {"Authorization": "Bearer first"}
    file.write_text("second\n")
    assert found.headers() == {"Authorization": "Bearer second"}


def test_a_token_that_is_gone_may_come(tmp_path: Path) -> None:
    found = credentials.read(write(tmp_path, config({"tokenFile": "token"})))
    with pytest.raises(Unreachable, match=r"tokenFile .*/token does not exist; try again later"):
        found.headers()


@pytest.mark.parametrize(
    ("user", "name", "node"),
    [
        ({"token": token(sub="system:node:n1")}, "u", ""),
        ({"token": token(**{"kubernetes.io": {"node": {"name": "n1", "uid": "1"}}, "exp": 5})}, "u", "n1"),
        ({"token": token(**{"kubernetes.io": {"namespace": "kube-system"}})}, "u", ""),
        ({"token": "a.b.c"}, "u", ""),
        ({"token": "static"}, "system:node:n2", "n2"),
        ({"token": "static"}, "system:nodes", ""),
    ],
)
def test_the_nodes_name(tmp_path: Path, user: dict[str, Any], name: str, node: str) -> None:
    assert credentials.read(write(tmp_path, config(user, name=name))).node() == node


def test_until_when_a_token_counts(tmp_path: Path) -> None:
    assert credentials.read(write(tmp_path, config({"token": token(exp=1_900_000_000)}))).ended() == 1_900_000_000
    assert credentials.read(write(tmp_path, config({"token": "static"}))).ended() == 0


@pytest.mark.parametrize(
    ("user", "cluster", "why"),
    [
        ({"exec": {"command": "aws"}}, {}, "exec runs another program"),
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider asks another program"),
        ({"username": "root", "password": "x"}, {}, "username is a credential that API servers no longer accept"),
        ({"token": "x", "as": "admin"}, {}, "as impersonates another user"),
        ({"token": "x"}, {"insecure-skip-tls-verify": True}, "lets any host answer .* name the certificate-authority"),
        ({"token": "x"}, {"proxy-url": "http://proxy"}, "proxy-url is not supported"),
        ({"token": "x"}, {"server": "http://api:8080"}, "server 'http://api:8080' is not https"),
        ({"token": "x"}, {"server": ""}, "server '' is not https"),
        ({"token": "x"}, {"server": "https://api:70000"}, "server 'https://api:70000' is not https"),
        ({"token": "x"}, {"server": "https://[::1"}, r"server 'https://\[::1' is not https"),
        ({"token": "x"}, {"server": "https://:6443"}, "server 'https://:6443' is not https"),
        ({"token": "x"}, {"server": "https://u:hush@api"}, r"server 'https://\.\.\.@api' is not https"),
    ],
)
def test_what_is_refused(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], why: str) -> None:
    with pytest.raises(BackendRefused, match=f"{tmp_path}/kubeconfig: .*{why}"):
        credentials.read(write(tmp_path, config(user, cluster)))


def test_what_is_refused_in_yaml_too(tmp_path: Path) -> None:
    """YAML's true is read as text."""
    insecure, secure = (
        KUBEADM.replace("    server:", f"    insecure-skip-tls-verify: {word}\n    server:")
        for word in ("true", "false")
    )
    with pytest.raises(BackendRefused, match="insecure-skip-tls-verify lets any host"):
        credentials.read(write(tmp_path, insecure))
    assert credentials.read(write(tmp_path, secure)).server


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("", "is not an object of clusters"),
        ("[1]", "is not an object of clusters"),
        ("{", "neither YAML nor JSON"),
        ("a: [", "neither YAML nor JSON"),
        ("&a [*a, *a]", "neither YAML nor JSON"),
        ({"current-context": "x"}, "current-context is 'x', and contexts has none of that name"),
        ({**config({}), "users": [{"name": "x", "user": {}}]}, "current context's user is 'u', and users has none"),
        ({**config({}), "clusters": "c"}, "the current context's cluster is 'c', and clusters has none"),
        ({**config({}), "current-context": ""}, "current-context is ''"),
    ],
)
def test_files_that_are_none(tmp_path: Path, document: object, why: str) -> None:
    with pytest.raises(BackendRefused, match=why):
        credentials.read(write(tmp_path, document))


def test_data_that_is_no_base64(tmp_path: Path) -> None:
    found = credentials.read(write(tmp_path, config({}, {"certificate-authority-data": "Y2?"})))
    with pytest.raises(BackendRefused, match="certificate-authority-data is not base64"):
        found.tls()


def test_a_line_that_is_no_yaml_is_not_repeated(tmp_path: Path) -> None:
    path = write(tmp_path, KUBEADM + "    token: hush: hush\n")
    with pytest.raises(
        BackendRefused, match=r"neither YAML nor JSON \(mapping values .*, line 21, column 16\)"
    ) as said:
        credentials.read(path)
    assert "hush" not in str(said.value)


def test_a_token_of_several_lines(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush\nhush\n")
    for user in ({"token": "hush\nhush"}, {"tokenFile": "token"}, {"token": "hüsh"}):
        with pytest.raises(BackendRefused, match=r"its token is not one line of ASCII.*; correct it") as said:
            credentials.read(write(tmp_path, config(user))).headers()
        assert "sh" not in str(said.value).partition("token")[2]
    assert credentials.read(write(tmp_path, config({"token": "abc\n"}))).headers() == {"Authorization": "Bearer abc"}


def test_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(
        BackendRefused, match=r"no kubeconfig at /nowhere, .* name it as backends.kubernetes.kubeconfig"
    ):
        credentials.read("/nowhere")
    with pytest.raises(BackendRefused, match="cannot be read"):
        credentials.read("/dev/null")


def test_others_can_write_it(tmp_path: Path) -> None:
    file = write(tmp_path, config({"token": "x"}))
    Path(file).chmod(0o666)
    with pytest.raises(InvalidConfig, match="can be written by others than root"):
        credentials.read(file)


@pytest.mark.parametrize(("mode", "owner"), [(0o660, 0), (0o602, 0), (0o666, 0), (0o600, 65534), (0o620, 65534)])
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a file away")
def test_a_remedy_gives_a_secret_to_nobody(tmp_path: Path, mode: int, owner: int) -> None:
    """The advised command, typed as it is, makes the file usable, and adds no permission."""
    file = write(tmp_path, config({"token": "x"}))
    os.chown(file, owner, owner)
    Path(file).chmod(mode)
    with pytest.raises(InvalidConfig) as said:
        credentials.read(file)
    subprocess.run(["sh", "-euc", said.value.msg.partition("then: ")[2]], check=True)
    assert credentials.read(file).headers() == {"Authorization": "Bearer x"}
    assert Path(file).stat().st_mode & 0o777 & ~mode == 0


# As aws, gke-gcloud-auth-plugin and kubelogin do (client.authentication.k8s.io/v1).
PROGRAM = """#!/bin/sh
echo "asks somebody" >&2
id="$(id -u)/$HOME/$ADDED/$(echo "$KUBERNETES_EXEC_INFO" | grep -o v1beta1)"
echo '{"apiVersion": "'"$VERSION"'", "kind": "ExecCredential", "status": {"token": "'"$id/$1"'"}}'
"""


def operators(folder: Path, owner: int, **keys: Any) -> str:
    """An operator's kubeconfig, as `aws eks update-kubeconfig` and others write it."""
    folder.chmod(0o755)
    program = folder / "get-token"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    version = "client.authentication.k8s.io/v1beta1"
    env = [{"name": "ADDED", "value": "by-the-file"}, {"name": "VERSION", "value": version}]
    about = {"apiVersion": version, "command": "./get-token", "args": ["word"], "env": env, **keys}
    file = write(folder, config({"exec": about}))
    os.chown(file, owner, owner)
    Path(file).chmod(0o600)
    return file


@pytest.mark.skipif(os.geteuid() != 0, reason="root, to become another user")
@pytest.mark.parametrize("owner", [0, 65534])
def test_an_operators_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int) -> None:
    """An operator's command runs the program for the credential, as the file's owner.  Under sudo, the file may be the
    user's.  A CNI command does neither."""
    for folder in tmp_path.parents:
        folder.chmod(folder.stat().st_mode | 0o011)
    file = operators(tmp_path, owner)
    monkeypatch.setenv("SUDO_UID", "65534")
    home = pwd.getpwuid(owner).pw_dir
    found = credentials.read(file, as_operator=True).headers()
    assert found == {"Authorization": f"Bearer {owner}/{home}/by-the-file/v1beta1/word"}
    with pytest.raises((BackendRefused, InvalidConfig), match=r"exec runs another program|can be written by others"):
        credentials.read(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="root, to become another user")
def test_the_owner_is_that_of_the_contents(tmp_path: Path) -> None:
    """A user of sudo may put root's file in place of the one that was read, and the program would run as root."""
    for folder in tmp_path.parents:
        folder.chmod(folder.stat().st_mode | 0o011)
    file = operators(tmp_path, 65534)
    about = json.loads(Path(file).read_text())["users"][1]["user"]["exec"]
    Path(file).unlink()
    Path(file).touch()
    assert exec_credential.read(file, about, 65534)["token"].startswith("65534/")


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a file away")
def test_an_owner_that_passwd_does_not_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "54321")
    with pytest.raises(BackendRefused, match="exec: no user of this node has the number 54321"):
        credentials.read(operators(tmp_path, 54321), as_operator=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a file away")
def test_another_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", "1000")
    with pytest.raises(InvalidConfig, match=r"can be written by others than root \(owner 65534"):
        credentials.read(operators(tmp_path, 65534), as_operator=True)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"command": "no-such-program"}, "exec no-such-program: No such file or directory; "),
        ({"command": "false", "args": []}, r"exec false: exit status 1 \(.*\); "),
        ({"command": "true", "args": []}, "exec true: it printed no ExecCredential with a token or a certificate; "),
        ({"command": 5}, "exec is not a command with args and env; "),
        ({"env": 5}, "exec is not a command with args and env; "),
    ],
)
def test_a_program_without_a_credential(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    file = operators(tmp_path, os.geteuid(), **keys)
    with pytest.raises(BackendRefused, match=f"{tmp_path}/kubeconfig: {why}"):
        credentials.read(file, as_operator=True)


def test_a_comment_before_json(tmp_path: Path) -> None:
    """It is read as JSON: YAML would take twenty times as long, and Go's reader accepts both."""
    text = f"# somebody wrote this\n\n # and that\n{json.dumps(config({'token': 'x'}, {'a': True}))}"
    assert credentials.read(write(tmp_path, text)).cluster["a"] is True


def test_the_first_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = write(tmp_path, config({"token": "x"}))
    monkeypatch.setattr(credentials, "DEFAULTS", (f"{tmp_path}/none", there, "/nor/this"))
    found = credentials.read()
    assert found.path == there
    assert found.is_current()
    write(tmp_path, config({"token": "another"}))
    assert not found.is_current()


def test_a_pods_token_after_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next credential counts while the directory of the token is gone: its pod was deleted, or the option that
    wrote the file was switched off.  A token that is only being replaced is waited for."""
    pods = tmp_path / "pods" / "uid" / "credential"
    pods.mkdir(parents=True)
    ours = write(tmp_path, config({"tokenFile": f"{pods}/token"}))
    (tmp_path / "kubelets").mkdir()
    kubelets = write(tmp_path / "kubelets", config({"token": "x"}))
    monkeypatch.setattr(credentials, "DEFAULTS", (ours, f"{tmp_path}/none", kubelets))
    assert credentials.read().path == ours
    pods.rmdir()
    assert credentials.read().path == kubelets
    Path(kubelets).unlink()
    with pytest.raises(Unreachable, match=f"{ours}: tokenFile {pods}/token does not exist; try again later"):
        credentials.read().headers()
    assert credentials.read(ours).path == ours
    pods.mkdir()
    assert credentials.read().path == ours


def test_a_pods_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet replaces the directory when it renews the token."""
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}/ca.crt").write_text("ca")
        claims = {"kubernetes.io": {"node": {"name": "node1"}}, "number": number}
        (tmp_path / f"..{number}/token").write_text(token(**claims))
    (tmp_path / "..data").symlink_to("..1")
    for name in ("ca.crt", "token"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    with pytest.raises(BackendRefused, match=r"KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT do not name it"):
        credentials.read(f"{tmp_path}")
    for host, port, server in (
        ("10.96.0.1", "443", "https://10.96.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
    ):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        assert credentials.read(f"{tmp_path}").server == server
    found = credentials.read(f"{tmp_path}")
    assert (found.tls().ca, found.node()) == (b"ca", "node1")
    before = found.headers()
    (tmp_path / "..data").unlink()
    (tmp_path / "..data").symlink_to("..2")
    assert found.is_current()
    assert found.headers() != before


@pytest.mark.parametrize("pem", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"])
def test_what_is_no_certificate(pem: bytes) -> None:
    assert tls.certificate(pem) is None


def test_certificates(signer: Authority) -> None:
    """A time after 2049 has another encoding than one before (RFC 5280, section 4.1.2.5)."""
    cert, _ = signer.sign("/O=nobody/CN=späte Größe", until="20510203040506Z")
    assert tls.certificate(cert) == tls.Certificate("späte Größe", 2559009906)  # by date
    for cut in range(0, len(cert), 7):
        tls.certificate(cert[:cut] + b"-----END CERTIFICATE-----")
