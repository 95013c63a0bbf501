"""Reads a device file, hpn's own or that of one of three other device plugins.

The file's top key shows its dialect.  A peer's file is read as the peer reads it, hpn's own strictly.
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from base import yaml_document as document
from base.protocol.errors import InvalidConfig
from base.state import trust
from base.yaml_document import BadFile, shown
from node.config import old, own, shared, sriov
from node.config.values import meant
from node.model import Settings

__all__ = ["DEFAULTS", "OURS", "BadFile", "read", "settings"]

# A separate directory, because a mounted ConfigMap hides all other files of its directory, and /etc/cni has many.
OURS: Final = Path("/etc/hpn/devices.yaml")
DEFAULTS: Final = (
    OURS,
    Path("/k8s-rdma-shared-dev-plugin/config.json"),
    Path("/etc/pcidp/config.json"),
    Path("/k8s-rdma-sriov-dev-plugin/config.json"),
)
_MOST: Final = 1 << 20  # bytes, as a ConfigMap has
_REMARKS: Final = 10  # keys with a remark
# The top keys of the dialects; those of the peers in any case.
_OURS: Final = "resources"
_PEERS: Final = ("configList", "resourceList", "mode")


def read(path: Path, *, prefix: str = "", cdi: bool = False) -> Settings:
    """The file's settings.

    - ``prefix``: for resources without one, in hpn's file and in that of sriov-network-device-plugin, which has it as
      --resource-prefix.
    - ``cdi``: give devices of all resources by CDI names: the peers' --use-cdi.

    Raises only BadFile: for any fault of the file, and if it is missing or others than root could have written it.
    """
    try:
        data = trust.read_trusted(str(path), _MOST)
        found = settings(data, is_yaml=_is_yaml(path, data or b""), prefix=prefix, cdi=cdi)
        return replace(found, notes=(*_unread(path), *found.notes))
    except BadFile as e:
        raise _in_file(path, e.msg, e) from e
    except InvalidConfig as e:  # which names the file
        raise BadFile(e.msg) from e
    except (OSError, ValueError) as e:
        raise _in_file(path, f"it cannot be read ({getattr(e, 'strerror', None) or e})", e) from e


def settings(data: bytes | None, *, is_yaml: bool, prefix: str = "", cdi: bool = False) -> Settings:
    """The settings of a file's contents; None for no file.  Raises BadFile, which does not name the file."""
    if data is None:
        raise BadFile("no such file; conf/devices.yaml is an example")
    parsed = document.parse(data, is_yaml=is_yaml)
    match _dialect(parsed.value):
        case "resources":
            if parsed.broken:
                raise BadFile(parsed.broken)
            if parsed.twice:
                raise BadFile(f"the key {shown(parsed.twice[0])} is given twice in one object; remove one")
            found = own.settings(parsed.value, prefix=prefix, cdi=cdi)
        case "configList":
            found = shared.settings(parsed.value, cdi=cdi)
        case "resourceList":
            found = sriov.settings(parsed.value, prefix=prefix, cdi=cdi)
        case _:
            found = old.settings(parsed.value, cdi=cdi)
    if not found.resources:
        raise BadFile("; ".join(found.left_out))
    twice = tuple(
        f"the key {shown(key)} is twice in one object, and the last one counts" for key in parsed.twice[:_REMARKS]
    )
    return replace(found, notes=(*filter(None, [parsed.broken]), *twice, *found.notes))


def _dialect(value: Any) -> str:
    """The file's top key.  Raises BadFile."""
    if not isinstance(value, dict):
        raise BadFile(f"{shown(value)} is not an object with resources; conf/devices.yaml is an example")
    if "apiVersion" in value and "kind" in value:
        kind = shown(value["kind"])
        raise BadFile(f"it is a Kubernetes object (kind {kind}); use the file in it, below data")
    lower = {key.lower() for key in value}
    found = [_OURS] * (_OURS in value) + [key for key in _PEERS if key.lower() in lower]
    if len(found) > 1:
        raise BadFile(f"it has {' and '.join(found)}, which are keys of different programs' files; remove one")
    if not found:
        guesses = filter(None, (meant(key, (_OURS, *_PEERS)) for key in islice(value, _REMARKS)))
        remedy = next(guesses, f"; write {_OURS}, as in conf/devices.yaml")
        raise BadFile(f"it has none of the keys {', '.join((_OURS, *_PEERS))}{remedy}")
    return found[0]


def _unread(path: Path) -> list[str]:
    """A note for each other file that a device plugin would read from its own place."""
    others = [one for one in DEFAULTS if one != path and one.exists()] if path in DEFAULTS else []
    return [f"{one} exists too and is not read; for both, write their resources into {OURS}" for one in others]


def _is_yaml(path: Path, data: bytes) -> bool:
    if path.suffix.lower() in (".yaml", ".yml", ".json"):
        return path.suffix.lower() != ".json"
    return not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"["))


def _in_file(path: Path, why: str, error: BaseException) -> BadFile:
    name = str(path)
    refused = BadFile(f"{name if name.isprintable() else repr(name)}: {why}")
    for note in getattr(error, "__notes__", ()):
        refused.add_note(note)
    return refused
