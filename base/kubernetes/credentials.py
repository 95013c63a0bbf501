"""This node's credential for the API server: a kubeconfig that the policy file names, or kubelet's.

The format is kubectl's (kubernetes.io, "kubeconfig (v1)"). Certificates are read again for every connection and a token
for every request, because both are renewed at any time.  No program is run for a node's credential: a CNI command would
wait for it, as root.  In a pod, the policy file can name the directory of a service account's token.
"""

import binascii
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from base.kubernetes.http import is_url, shown
from base.kubernetes.tls import Tls, certificate
from base.protocol.errors import BackendRefused, InvalidConfig, Unreachable
from base.protocol.spec import Json
from base.state import policy, trust

# The first that exists counts: a service account's, kubeadm's for kubelet, another installer's for kubelet.
DEFAULTS: Final = ("/etc/cni/net.d/hpn.kubeconfig", "/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/kubeconfig")
_MOST: Final = 1 << 20  # bytes of a file
_NODE: Final = "system:node:"
_SYSTEM: Final = "kube-system"
_KEYS: Final = ("kubeconfig",)  # in the policy file
# Variables that kubelet sets in every container (kubernetes.io, "Accessing the API from within a pod").
_SERVER: Final = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_COMMENTS: Final = re.compile(r"\A(\s*#.*\n)*\s*")
_ACCOUNT: Final = "give hpn a credential of its own: clusterAddresses.token of the chart, or docs/user/kubernetes.md"
# Keys that are not supported, and why.
_REFUSED: Final = {
    "exec": f"runs another program for the credential, which no CNI command does; {_ACCOUNT}",
    "auth-provider": f"asks another program for the credential; {_ACCOUNT}",
    "username": f"is a credential that API servers no longer accept; {_ACCOUNT}",
    "as": f"impersonates another user; {_ACCOUNT}",
    "insecure-skip-tls-verify": (
        "lets any host answer as the API server, and allocate an address twice; remove it, and name the "
        f"certificate-authority; or {_ACCOUNT}"
    ),
    "proxy-url": "is not supported; remove it, and name the API server itself",
}


@dataclass(frozen=True)
class Kubeconfig:
    """The cluster and the user of the current context; ``name`` is the user's.

    ``stamp`` identifies a version of the file.  ``as_operator`` is that of ``read``.
    """

    path: str
    cluster: Json
    user: Json
    name: str
    stamp: tuple[int, ...]
    as_operator: bool = False

    @property
    def server(self) -> str:
        return str(self.cluster["server"])

    def again(self) -> "Kubeconfig":
        """Read the file again.  Raises as ``read``."""
        return read(self.path, as_operator=self.as_operator)

    def is_current(self) -> bool:
        """Whether the file did not change since it was read."""
        return _stamp(self.path) == self.stamp

    def is_left_over(self) -> bool:
        """Whether it names a token in a directory that is gone, with the pod of a DaemonSet."""
        file = self.user.get("tokenFile")
        return bool(file) and not os.path.isdir(os.path.dirname(self._path(str(file))))

    def tls(self) -> Tls:
        """Return the certificates, as the files hold them now.

        Raises BackendRefused, Unreachable, InvalidConfig.
        """
        return Tls(
            ca=self._data(self.cluster, "certificate-authority"),
            cert=self._data(self.user, "client-certificate"),
            key=self._data(self.user, "client-key"),
            server_name=str(self.cluster.get("tls-server-name") or ""),
            source=self.path,
        )

    def headers(self) -> Mapping[str, str]:
        """Return the token's header, as the file holds it now.  Raises BackendRefused, Unreachable, InvalidConfig."""
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def node(self) -> str:
        """Return the node of this credential; empty if unknown.

        Raises BackendRefused, Unreachable, InvalidConfig.
        """
        found = certificate(self._data(self.user, "client-certificate"))
        return _node(found.name if found else "") or self._claimed_node() or _node(self.name)

    def namespace(self) -> str:
        """Return the namespace of the token's service account, and for another credential kube-system.

        Raises BackendRefused, Unreachable, InvalidConfig.
        """
        about = _claims(self._token()).get("kubernetes.io")
        return str(about.get("namespace") or _SYSTEM) if isinstance(about, dict) else _SYSTEM

    def ended(self) -> float:
        """Return when the credential expires or expired, in seconds since 1970; 0 if unknown.

        Raises BackendRefused, Unreachable, InvalidConfig.
        """
        if token := self._token():
            until = _claims(token).get("exp", 0)
            return float(until) if isinstance(until, int | float) else 0.0
        found = certificate(self._data(self.user, "client-certificate"))
        return found.until if found else 0.0

    def _claimed_node(self) -> str:
        """Return the node in a token that the API server issued for a pod or a node (KEP-4193)."""
        about = _claims(self._token()).get("kubernetes.io")
        node = about.get("node") if isinstance(about, dict) else None
        return str(node.get("name") or "") if isinstance(node, dict) else ""

    def _token(self) -> str:
        # As in kubectl and client-go, the file takes precedence.
        if file := self.user.get("tokenFile"):
            token = self._file("tokenFile", str(file)).decode("ascii", "replace").strip()
        else:
            token = str(self.user.get("token") or "").strip()
        # A header allows nothing else, and a later error would quote the token.
        if not (token.isascii() and token.isprintable()):
            raise BackendRefused(f"{self.path}: its token is not one line of ASCII; correct it")
        return token

    def _data(self, section: Json, key: str) -> bytes:
        """Return the data in the kubeconfig, or in the file that it names; empty without either."""
        if data := section.get(f"{key}-data"):
            try:
                return binascii.a2b_base64("".join(str(data).split()), strict_mode=True)
            except ValueError as e:
                raise BackendRefused(f"{self.path}: {key}-data is not base64 ({e}); correct it") from e
        file = section.get(key)
        return self._file(key, str(file)) if file else b""

    def _path(self, file: str) -> str:
        return os.path.join(os.path.dirname(self.path), file)

    def _file(self, key: str, file: str) -> bytes:
        path = self._path(file)
        try:
            found = trust.read_trusted(path, _MOST, _also(as_operator=self.as_operator))
        except OSError as e:
            raise BackendRefused(f"{self.path}: {key} {path} cannot be read ({e.strerror}); correct it") from e
        if found is None:
            # A renewed file may be absent for a moment, as a pod's token is while the pod is replaced.
            raise Unreachable(f"{self.path}: {key} {path} does not exist; try again later, or name another")
        return found


def read(named: str = "", *, as_operator: bool = False, of_pod: Mapping[str, str] = os.environ) -> Kubeconfig:
    """Return the kubeconfig at ``named``, or else the first of DEFAULTS that exists and was not left over by a pod.

    A directory must hold ``token`` and ``ca.crt`` of a service account, for the API server of the pod with the
    environment ``of_pod``.  With ``as_operator``, for an operator's command, the file may be that of the user who
    called sudo, and its ``exec`` is run.

    Raises BackendRefused if there is none, or for a key that is not supported; InvalidConfig if other users can write
    to it.
    """
    if named and os.path.isdir(named):
        return _of_account(named, of_pod)
    places, left_over = (named,) if named else DEFAULTS, None
    for path in places:
        stamp = _stamp(path)
        try:
            text = trust.read_owned(path, _MOST, _also(as_operator=as_operator))
        except OSError as e:
            raise BackendRefused(f"the kubeconfig {path} cannot be read ({e.strerror}); correct it") from e
        if text is not None:
            found = _parsed(path, *text, stamp, as_operator=as_operator)
            if named or not found.is_left_over():
                return found
            left_over = left_over or found
    if left_over:
        return left_over
    raise BackendRefused(
        f"there is no kubeconfig at {' or '.join(places)}, and requests to the API server need one; name it as "
        f"backends.kubernetes.kubeconfig in /etc/hpn/policy.json, or: {_ACCOUNT}"
    )


def _also(*, as_operator: bool) -> int:
    """The user besides root who may write the files: of an operator's command, the one who called sudo."""
    user = os.environ.get("SUDO_UID", "") if as_operator else ""
    return int(user) if user.isdecimal() else 0


def of_node(about: Mapping[str, Any], name: str, of_pod: Mapping[str, str] = os.environ) -> tuple[Kubeconfig, str]:
    """Return this node's kubeconfig and its name in the cluster, by the policy file's keys and its nodeName; ``of_pod``
    is that of ``read``.

    Raises InvalidConfig for these keys, BackendRefused without a credential.
    """
    if unknown := sorted(about.keys() - {*_KEYS}):
        raise _wrong(unknown[0], f"is not a known key; known: {', '.join(_KEYS)}")
    path = about.get("kubeconfig", "")
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise _wrong("kubeconfig", f"{path!r} is not an absolute path")
    kubeconfig = read(path, of_pod=of_pod)
    owner = kubeconfig.node()
    if name and owner and name != owner:
        # This node would treat the other node's blocks as its own.
        raise InvalidConfig(
            f"the policy file {policy.FILE}: backends.nodeName {name!r}, and {kubeconfig.path} is the "
            f"credential of node {owner}; remove nodeName, or name a kubeconfig of this node"
        )
    return kubeconfig, name or owner or os.uname().nodename.lower()


def _wrong(key: str, why: str) -> InvalidConfig:
    return InvalidConfig(f"the policy file {policy.FILE}: backends.kubernetes.{key} {why}")


def _parsed(path: str, data: bytes, owner: int, stamp: tuple[int, ...], *, as_operator: bool) -> Kubeconfig:
    document = _document(path, data)
    current = str(document.get("current-context") or "")
    context = _named(path, document, "context", current)
    cluster = _named(path, document, "cluster", str(context.get("cluster") or ""))
    name = str(context.get("user") or "")
    user = _named(path, document, "user", name)
    if as_operator and "exec" in user:
        from base.kubernetes import exec_credential  # noqa: PLC0415  # no CNI command may run it

        about = user["exec"]
        user = {key: value for key, value in user.items() if key != "exec"} | exec_credential.read(path, about, owner)
    for section in (cluster, user):
        for key, why in _REFUSED.items():
            if section.get(key) not in (None, "", "false", False):
                raise BackendRefused(f"{path}: {key} {why}")
    if not is_url(cluster.get("server"), "https"):
        raise BackendRefused(f"{path}: server {shown(cluster.get('server'))} is not https://HOST:PORT; correct it")
    return Kubeconfig(path, cluster, user, name, stamp, as_operator)


def _of_account(folder: str, of_pod: Mapping[str, str]) -> Kubeconfig:
    host, port = (of_pod.get(name, "") for name in _SERVER)
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not is_url(server, "https"):
        raise BackendRefused(
            f"{folder} is a directory, so the API server is this pod's, and {' and '.join(_SERVER)} do not "
            "name it; name a kubeconfig"
        )
    cluster = {"server": server, "certificate-authority": f"{folder}/ca.crt"}
    return Kubeconfig(folder, cluster, {"tokenFile": f"{folder}/token"}, "", _stamp(folder))


def _document(path: str, data: bytes) -> Json:
    try:
        text = data.decode()
        # JSON may have comments in front, such as those of hpn install.
        rest = _COMMENTS.sub("", text)
        document = json.loads(rest) if rest.startswith("{") else _yaml(text)
    except (ValueError, RecursionError) as e:
        raise BackendRefused(f"the kubeconfig {path} is neither YAML nor JSON ({' '.join(str(e).split())})") from e
    if not isinstance(document, dict):
        raise BackendRefused(f"the kubeconfig {path} is not an object of clusters, users and contexts; correct it")
    return document


def _yaml(text: str) -> Any:
    """Parse YAML with every scalar as text.  Raises ValueError."""
    import yaml  # noqa: PLC0415  # 20 ms, which JSON saves

    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  # it creates only text, lists and dicts
    except yaml.MarkedYAMLError as e:
        # The error's text quotes the line, which may contain a token.
        at = e.problem_mark
        raise ValueError(f"{e.problem}, line {at.line + 1}, column {at.column + 1}" if at else e.problem) from e
    except yaml.YAMLError as e:
        raise ValueError(str(e)) from e


def _named(path: str, document: Json, kind: str, name: str) -> Json:
    """Return the cluster, user or context of that name."""
    listed: Sequence[Any] = document.get(f"{kind}s") or ()
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(kind), dict):
            found: Json = one[kind]
            return found
    which = "current-context" if kind == "context" else f"the current context's {kind}"
    raise BackendRefused(f"{path}: {which} is {name!r}, and {kind}s has none of that name; correct it")


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    if stat.S_ISDIR(found.st_mode):  # its files are read again each time
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _node(name: str) -> str:
    """Return the node's name within a user's name; empty if it contains none."""
    return name.removeprefix(_NODE) if name.startswith(_NODE) else ""


def _claims(token: str) -> Json:
    """Return the claims of a JSON Web Token (RFC 7519, section 3), unverified; empty for other text."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(binascii.a2b_base64(parts[1].replace("-", "+").replace("_", "/") + "=="))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
