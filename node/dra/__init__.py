"""Dynamic Resource Allocation: offers devices as ResourceSlices, and prepares the claims that the scheduler allocates.

Nothing here is imported unless the device file has a resource ``by: dra``.
"""

from typing import Final

DRIVER: Final = "hpn-cni.io"
"""The driver's name in slices and claims, and the domain of its attributes."""
VERSION: Final = "resource.k8s.io/v1"
