"""Configurations on the node: the runtime's directory, and the file of hpn node.

NetworkAttachmentDefinitions are in the API server; the journal holds the configuration of each attachment (state.py).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from base.kernel import sysfs
from base.protocol import spec
from base.protocol.errors import CniError
from base.protocol.spec import Json, Request
from base.state import permitted, policy
from cni import config
from ctl.doctor import places
from ctl.doctor.model import Addresses, Network, NodeFile, Process
from ctl.doctor.reading import Reader
from ipam.ranges import Span
from node import config as node_config
from node.flags import Flags, Wrong, parse

_SUFFIXES: Final = (".conf", ".conflist", ".json")  # libcni's
_OURS: Final = "hpn"
_IPAM: Final = "hpn-ipam"
_NODE: Final = "hpn-node"  # the process's name
# A placeholder for the device that a runtime would name.
_DEVICE: Final = "0000:00:00.0"


def networks(read: Reader) -> tuple[Network, ...]:
    """The networks for hpn, from the runtime's directory."""
    paths = _files(read)
    file = read.at(policy.FILE)
    # A refused one is a finding of its own, not of each network.
    file = file if read.data(file) is not None and not policy_refused(read) else ""
    found = [network for path in paths for network in _networks(path, read.data(path) or b"{}", file)]
    return tuple(replace(one, is_the_runtimes=one.source == paths[0]) for one in found)


def _files(read: Reader) -> list[str]:
    """The files of the runtime's directory, in its order."""
    folders = ([f"{read.at(folder)}/{name}" for name in read.names(read.at(folder))] for folder in places.NETWORKS)
    files = ([path for path in folder if path.endswith(_SUFFIXES)] for folder in folders)
    return next(filter(None, files), [])


def broken(read: Reader) -> tuple[str, str] | None:
    """The first file of the runtime's directory, with the reason, if it defines no network; else None."""
    for path in _files(read)[:1]:
        data = read.data(path)
        try:
            document = json.loads(data) if data is not None else None
        except (ValueError, RecursionError) as e:
            return path, f"{e}"
        is_list = path.endswith(".conflist")
        key = "plugins" if is_list else "type"
        if data is not None and not (isinstance(document, dict) and document.get(key)):
            return path, f"it has no {key}"
    return None


def _networks(path: str, data: bytes, node_file: str) -> Iterator[Network]:
    for plugin in plugins(data):
        if plugin.get("type") == _OURS:
            yield _network(path, plugin, node_file)


def plugins(data: bytes) -> Iterator[Json]:
    """The configurations of its plugins, each as libcni builds it; none for a document that is not a network."""
    with suppress(ValueError, RecursionError):
        yield from _plugins_of(json.loads(data))


def _plugins_of(document: object) -> Iterator[Json]:
    """The plugins of a network, and of the networks in Multus's ``delegates``, which have the same two forms."""
    plugins = document.get("plugins", [document]) if isinstance(document, dict) else ()
    for plugin in plugins if isinstance(plugins, list) else ():
        if isinstance(document, dict) and isinstance(plugin, dict):
            yield {key: document[key] for key in ("cniVersion", "name") if key in document} | plugin
            delegates = plugin.get("delegates")
            for delegate in delegates if isinstance(delegates, list) else ():
                yield from _plugins_of(delegate)


def addresses_in(source: str, data: bytes) -> Iterator[Addresses]:
    """The addresses of each plugin with hpn-ipam; none of a refused one."""
    for plugin in plugins(data):
        yield from addresses_of(source, plugin)


def addresses_of(source: str, conf: spec.Config, *, is_here: bool = False) -> Iterator[Addresses]:
    """The addresses of a configuration with hpn-ipam; nothing if it has another IPAM, or is refused.

    ``is_here``: its node, and its parent, are those of the running kernel.
    """
    from ipam import config as ipam_config  # noqa: PLC0415  # few nodes have a definition or a file

    try:
        asked = spec.decode(json.dumps(conf).encode(), True)  # noqa: FBT003
        ipam = asked.get("ipam")
        if isinstance(ipam, dict) and ipam.get("type") == _IPAM:
            # Its resolv.conf is of no interest here.
            ranges = {key: value for key, value in ipam.items() if key != "resolvConf"}
            pool = ipam_config.load({"ipam": ranges}, {})
            sets = [s for s in (*pool.sets, *(pool.aside.sets if pool.aside else ())) if not s.ranges[0].is_derived]
            spans = tuple(span for s in sets for span in s.all_spans)
            yield Addresses(
                source,
                f"{asked.get('name', '')}",
                spans,
                tuple(span for s in sets for span in s.spans),
                is_shared=bool(pool.cluster),
                overlaps=bool(ipam.get("overlaps")),
                of_node=tuple(span for span in _of_node(asked) if span not in spans) if is_here else (),
            )
    except CniError:
        return


def _of_node(conf: spec.Config) -> tuple[Span, ...]:
    """The addresses with those that only this node has; none if the configuration names no parent here."""
    from ipam import config as ipam_config  # noqa: PLC0415  # as above
    from ipam import parent  # noqa: PLC0415  # as above

    with suppress(CniError, OSError):
        ipam = {key: value for key, value in conf["ipam"].items() if key != "resolvConf"}
        pools = [ipam_config.load({**one, "ipam": ipam}, {}, parent.find) for one in _attachments(conf)]
        sets = [s for pool in pools for s in pool.sets if not s.ranges[0].is_derived]
        return tuple(span for s in sets for span in s.all_spans)
    return ()


def _network(path: str, conf: Json, node_file: str) -> Network:
    asked: Any = conf
    try:
        asked = spec.decode(json.dumps(conf).encode(), True)  # noqa: FBT003
        permits = permitted.read(node_file) if node_file else permitted.Permits(None, {}, {})
        for one in _attachments(asked):
            wanted = config.load({"deviceID": _DEVICE, **one} if _needs_device(one) else one, "")
            named = [name for name in wanted.named if name[2] != _DEVICE]
            permits.refuse_names(Request({}), one, named, has_leases=wanted.where.ipam == _IPAM)
    except CniError as e:
        return Network(path, asked, e.msg)
    return Network(path, asked)


def _attachments(conf: spec.Config) -> list[spec.Config]:
    """The configuration of each attachment.  Of rails, those that are interfaces; only a pod has resources."""
    listed = rails(conf)
    return [{**conf, **config.of_rail(one, conf)} for one in listed if "/" not in one] if listed else [conf]


def rails(conf: spec.Config) -> list[str]:
    """The interfaces and resources in its rails; none of a value that hpn refuses."""
    found = conf.get("rails")
    return found if isinstance(found, list) and all(isinstance(one, str) for one in found) else []


def _needs_device(conf: spec.Config) -> bool:
    """True if the runtime would name the device, because no key does."""
    return conf.get("kind") in ("sriov", "host-device") and not conf.keys() & {"pf", "device", "deviceID", "pciBusID"}


def without_names(read: Reader) -> str:
    """The policy file if it does not limit names, or does not exist; else empty."""
    path = read.at(policy.FILE)
    return "" if f'"{policy.NAMES}"'.encode() in (read.data(path) or b"") else path


def policy_refused(read: Reader) -> str:
    """The policy file, and why each ADD on this node refuses it; empty if it does not."""
    path = read.at(policy.FILE)
    try:
        permitted.read(path)
    except CniError as e:
        return f"{path}: {e.msg.removeprefix(f'the policy file {policy.FILE}: ')}"
    return ""


def node_file(read: Reader, processes: Sequence[Process]) -> NodeFile | None:
    """The first existing file of hpn node's default paths, else that of a running hpn node, such as a container's; None
    without one."""
    found = _node_file(read, "", Flags())
    for one in processes:
        if one.build and one.name == _NODE and "node" in one.words:
            with suppress(Wrong):
                flags, root = parse(one.words[one.words.index("node") + 1 :]), f"{one.path}/root"
                found = found or _node_file(read, root, flags)
                if found and flags.kubeconfig:
                    pairs = (pair.partition("=") for pair in read.line(f"{one.path}/environ").split("\0"))
                    environment = {name: value for name, _, value in pairs if name}
                    found = replace(found, kubeconfig=f"{root}{flags.kubeconfig}", environment=environment)
    return found


def _node_file(read: Reader, root: str, flags: Flags) -> NodeFile | None:
    """The file of an hpn node with these flags and this root directory; empty for the node's own."""
    for default in [flags.config] if flags.config else node_config.DEFAULTS:
        path = Path(f"{root}/{default}") if root else Path(read.at(f"{default}"))
        if read.stat(f"{path}"):
            is_ours = not root and default == node_config.OURS
            is_closed = sysfs.is_read_only(f"{root or read.root}/sys/devices")
            try:
                settings = node_config.read(path, prefix=flags.prefix, cdi=flags.cdi)
                return NodeFile(f"{path}", settings, is_ours=is_ours, is_sys_read_only=is_closed)
            except node_config.BadFile as e:
                return NodeFile(f"{path}", None, e.msg, is_ours=is_ours)
    return None
