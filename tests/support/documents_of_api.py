"""Objects and lists of an API server, as hpn doctor reads them."""

import json
from typing import Any

from support.tls_server import Told

NAMES = "k8s.v1.cni.cncf.io/resourceName"


def listed(*items: Any, more: str = "") -> Told:
    return Told(200, {"items": list(items), "metadata": {"continue": more}})


def definition(name: str, resource: str | None, config: Any = None) -> dict[str, Any]:
    """Return a NetworkAttachmentDefinition; ``config`` is a document, or text."""
    text = config if config is None or isinstance(config, str) else json.dumps(config)
    about = {"namespace": "ml", "name": name, "annotations": {NAMES: resource} if resource else None}
    return {"metadata": about} | ({} if text is None else {"spec": {"config": text}})


def node(**allocatable: str) -> dict[str, Any]:
    return {"status": {"allocatable": {f"example.com/{name}": count for name, count in allocatable.items()}}}
