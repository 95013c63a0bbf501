"""The credential that another program prints, for operators' commands: `exec` of a kubeconfig (kubernetes.io,
"Authenticating", client-go credential plugins).  EKS, GKE and AKS use it.
"""

import base64
import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from base.protocol.errors import BackendRefused
from base.protocol.spec import Json

# The program may ask its own server, or a person.
_TIMEOUT: Final = 60.0
_SHOWN: Final = 200
_ALONE: Final = "or give a kubeconfig with a token: kubectl create token"
# Members of ExecCredential's status, and the keys of a kubeconfig's user with the same meaning, in base64.
_DATA: Final = {"clientCertificateData": "client-certificate-data", "clientKeyData": "client-key-data"}


def read(path: str, about: object, owner: int) -> Json:
    """Run the program of ``exec`` in the kubeconfig at ``path``, as the file's owner, and return the user's keys.

    ``owner`` was read with the contents, because the path may lead to another file by now.  Raises BackendRefused.
    """
    about = about if isinstance(about, dict) else {}
    command = [about.get("command"), *_list(about.get("args"))]
    env = [one if isinstance(one, dict) else {} for one in _list(about.get("env"))]
    texts = [*command, *(one.get(key) for one in env for key in ("name", "value"))]
    if not all(isinstance(one, str) for one in texts):
        raise BackendRefused(f"{path}: exec is not a command with args and env; correct it, {_ALONE}")
    asked = {"apiVersion": about.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    added = {one["name"]: one["value"] for one in env} | {"KUBERNETES_EXEC_INFO": json.dumps(asked)}
    printed, status = _printed(path, command, added, owner), None
    with suppress(ValueError, RecursionError, AttributeError):
        status = json.loads(printed).get("status")
    found = {} if not isinstance(status, dict) else {
        **({"token": status["token"]} if status.get("token") else {}),
        **{key: _base64(status[name]) for name, key in _DATA.items() if status.get(name)},
    }  # fmt: skip
    if not found:
        what = f"{path}: exec {command[0]}: it printed no ExecCredential with a token or a certificate"
        raise BackendRefused(f"{what}; check what kubectl gets, {_ALONE}")
    return found


def _list(value: object) -> list[Any]:
    """The value's items; YAML's null is read as text.  [None] for a value that is not a list."""
    return value if isinstance(value, list) else [] if value in (None, "", "null", "~") else [None]


def _printed(path: str, command: list[str], added: Mapping[str, str], user: int) -> bytes:
    as_user, env = dict[str, Any](), {**os.environ, **added}
    if user != os.geteuid():  # never root's rights for another user's file
        try:
            about = pwd.getpwuid(user)
        except KeyError:
            why = f"no user of this node has the number {user}, its owner's"
            raise BackendRefused(f"{path}: exec: {why}; give the file to one, {_ALONE}") from None
        as_user = {"user": user, "group": about.pw_gid, "extra_groups": os.getgrouplist(about.pw_name, about.pw_gid)}
        env = {**os.environ, "HOME": about.pw_dir, "USER": about.pw_name, "LOGNAME": about.pw_name, **added}
    what = f"{path}: exec {command[0]}"
    # kubectl, too, resolves a path with a slash from the kubeconfig's directory.
    name = os.path.join(os.path.dirname(path), command[0]) if "/" in command[0] else command[0]
    try:
        done: subprocess.CompletedProcess[bytes] = subprocess.run(  # noqa: S603
            [shutil.which(name, path=env.get("PATH")) or name, *command[1:]], env=env, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_TIMEOUT, check=False, **as_user,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BackendRefused(f"{what}: no answer for {_TIMEOUT:g} s; check it, {_ALONE}") from None
    except OSError as e:
        raise BackendRefused(f"{what}: {e.strerror}; install it, {_ALONE}") from e
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-_SHOWN:]
        raise BackendRefused(f"{what}: exit status {done.returncode} ({said}); check it, {_ALONE}")
    return done.stdout


def _base64(text: object) -> str:
    return base64.b64encode(f"{text}".encode()).decode()
