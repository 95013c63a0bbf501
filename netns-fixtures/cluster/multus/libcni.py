"""The behaviour of libcni 1.3: call a network's plugins in turn, and store the result for CHECK and DEL.

https://github.com/containernetworking/cni/blob/v1.3.0/libcni/api.go
"""

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# The newest version of this libcni.
_NEWEST = (1, 1, 0)
_DISABLED = (True, "true")


class PluginFailed(Exception):
    """A plugin's error, with its CNI code, or 999 for an error without one."""

    def __init__(self, message: str, code: int = 999) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Network:
    """A network's plugins, and its configuration as it was read."""

    name: str
    version: str
    plugins: tuple[Json, ...]
    conf: Json
    is_list: bool

    def speaks(self, *version: int) -> bool:
        """Whether its version is that or a newer one."""
        return _numbers(self.version) >= version


@dataclass(frozen=True)
class Call:
    """The arguments of plugins for one attachment, and the directories of plugins and results."""

    path: tuple[str, ...]
    cache: Path
    container_id: str = ""
    netns: str = ""
    ifname: str = ""
    args: tuple[tuple[str, str], ...] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict)

    def result_file(self, network: Network) -> Path:
        return self.cache / "results" / f"{network.name}-{self.container_id}-{self.ifname}"


def network(conf: Json) -> Network:
    """A network from the configuration of one plugin, or of a list."""
    if "plugins" not in conf:
        return Network(conf.get("name", ""), conf.get("cniVersion", ""), (conf,), conf, is_list=False)
    versions = [v for v in (*conf.get("cniVersions", ()), conf.get("cniVersion", "")) if _numbers(v) <= _NEWEST]
    newest = max(versions, key=_numbers, default="")
    return Network(conf.get("name", ""), newest, tuple(conf["plugins"]), conf, is_list=True)


def add(net: Network, call: Call) -> Json:
    """ADD for each plugin, with the previous plugin's result; store and return the last result.

    Raises PluginFailed.
    """
    result: Json | None = None
    for plugin in net.plugins:
        try:
            result = json.loads(_run("ADD", _one(net, plugin, call, result), call) or "{}")
        except PluginFailed as e:
            raise PluginFailed(_of_list(net, plugin, "add", e), e.code) from e
    _keep(net, call, result or {})
    return result or {}


def delete(net: Network, call: Call) -> None:
    """DEL for each plugin in reverse order.  The stored result goes when all have succeeded.  Raises PluginFailed."""
    kept = kept_result(net, call) if net.speaks(0, 4, 0) else None
    for plugin in reversed(net.plugins):
        try:
            _run("DEL", _one(net, plugin, call, kept), call)
        except PluginFailed as e:
            raise PluginFailed(_of_list(net, plugin, "delete", e), e.code) from e
    with suppress(FileNotFoundError):
        call.result_file(net).unlink()


def check(net: Network, call: Call) -> None:
    """CHECK for each plugin.  Raises PluginFailed."""
    if net.conf.get("disableCheck") in _DISABLED:
        return
    for plugin in net.plugins:
        _run("CHECK", _one(net, plugin, call, kept_result(net, call)), call)


def status(net: Network, call: Call) -> None:
    """STATUS for each plugin, if the network's version has it.  Raises PluginFailed."""
    for plugin in net.plugins if net.speaks(1, 1, 0) else ():
        _run("STATUS", plugin | {"name": net.name, "cniVersion": net.version}, call)


def collect(net: Network, call: Call) -> None:
    """GC for each plugin, if the network's version has it: every attachment with a stored result is valid.

    Raises PluginFailed.
    """
    kept = [json.loads(file.read_text()) for file in sorted((call.cache / "results").iterdir())]
    valid = [{"containerID": k["containerId"], "ifname": k["ifName"]} for k in kept if k.get("containerId")]
    if net.conf.get("disableGC") in _DISABLED or not net.speaks(1, 1, 0):
        return
    attachments = {"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
    for plugin in net.plugins:
        _run("GC", plugin | {"name": net.name, "cniVersion": net.version} | attachments, call)


def kept_result(net: Network, call: Call) -> Json | None:
    """ADD's result, as long as it is stored."""
    try:
        result: Json | None = json.loads(call.result_file(net).read_text()).get("result")
    except (OSError, ValueError):
        return None
    return result


def change_result(net: Network, call: Call, result: Json) -> None:
    """Store another result in place of ADD's."""
    kept = json.loads(call.result_file(net).read_text())
    call.result_file(net).write_text(json.dumps(kept | {"result": result}))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in (version or "0.1.0").split("."))


def _one(net: Network, plugin: Json, call: Call, previous: Json | None) -> Json:
    """A plugin's stdin."""
    conf = plugin | {"name": net.name, "cniVersion": net.version}
    if previous is not None:
        conf["prevResult"] = previous
    able = {name for name, yes in (plugin.get("capabilities") or {}).items() if yes}
    if runtime := {name: value for name, value in call.capability_args.items() if name in able}:
        conf["runtimeConfig"] = runtime
    return conf


def _run(command: str, conf: Json, call: Call) -> str:
    """Run one plugin; its stdout.  Raises PluginFailed."""
    environ = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": call.container_id,
        "CNI_NETNS": call.netns,
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in call.args),
        "CNI_IFNAME": call.ifname,
        "CNI_PATH": os.pathsep.join(call.path),
    }
    program = _found(conf.get("type", ""), call.path)
    done = subprocess.run(
        [program], input=json.dumps(conf), text=True, stdout=subprocess.PIPE, env={**os.environ, **environ}, check=False
    )
    if done.returncode:
        raise _failure(done)
    return done.stdout


def _found(name: str, path: Sequence[str]) -> Path:
    for folder in path:
        if name and (program := Path(folder) / name).is_file():
            return program
    raise PluginFailed(f'failed to find plugin "{name}" in path {list(path)}')


def _failure(done: subprocess.CompletedProcess[str]) -> PluginFailed:
    try:
        error = json.loads(done.stdout)
        details = f"; {error['details']}" if error.get("details") else ""
        return PluginFailed(f"{error['msg']}{details}", error["code"])
    except (ValueError, KeyError, TypeError):
        return PluginFailed(f"netplugin failed with no error message (status {done.returncode}): {done.stdout!r}")


def _of_list(net: Network, plugin: Json, what: str, error: PluginFailed) -> str:
    """The error in libcni's words, which name the plugin only if it is part of a list."""
    return f'plugin type="{plugin.get("type")}" failed ({what}): {error}' if net.is_list else str(error)


def _keep(net: Network, call: Call, result: Json) -> None:
    file = call.result_file(net)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = {
        "kind": "cniCacheV1",
        "containerId": call.container_id,
        "config": base64.b64encode(json.dumps(net.conf).encode()).decode(),
        "ifName": call.ifname,
        "networkName": net.name,
        "netns": call.netns,
        "cniArgs": call.args,
        "capabilityArgs": call.capability_args,
        "result": result,
    }
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        json.dump(kept, out)
