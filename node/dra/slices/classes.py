"""A DeviceClass for each resource of a device file, as YAML for kubectl; pure.

With ``extendedResourceName`` a pod gets a device by the resource's name, from the device plugin or by DRA (KEP-5004).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from node.dra import DRIVER, VERSION
from node.dra.slices import names
from node.model import Resource

_NAME: Final = 253  # characters
_CLASS: Final = """\
apiVersion: {version}
kind: DeviceClass
metadata:
  name: {name}
  labels: {{app.kubernetes.io/name: hpn}}
spec:
  extendedResourceName: {resource}
  selectors:
  - cel:
      expression: device.driver == "{driver}" && device.attributes["k8s.cni.cncf.io"].resourceName == "{resource}"
"""


def text(resources: Sequence[Resource]) -> str:
    """The classes, in the resources' order."""
    return "---\n".join(
        _CLASS.format(version=VERSION, name=name, driver=DRIVER, resource=resource.full_name)
        for resource, name in zip(resources, _names(resources), strict=True)
    )


def _names(resources: Sequence[Resource]) -> Iterator[str]:
    """Each class's name: "rail0-vf.nvidia.com" of nvidia.com/rail0_vf; with a digest where two would be alike."""
    plain = [f"{re.sub('[^a-z0-9]', '-', one.name.lower())}.{one.prefix}" for one in resources]
    counts = Counter(plain)
    for resource, name in zip(resources, plain, strict=True):
        is_unfit = counts[name] > 1 or len(name) > _NAME
        yield f"{names.label(f'/{resource.full_name}')}.{DRIVER}" if is_unfit else name
