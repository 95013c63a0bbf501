"""Which names kubelet takes for a resource.

Its rule is IsExtendedResourceName (kubernetes: pkg/apis/core/v1/helper/helpers.go), which asks IsQualifiedName
(apimachinery: pkg/util/validation/validation.go) for the name with "requests." before it, as a quota has it.
"""

import re
from typing import Final

# A DNS-1123 subdomain has at most 253 characters, and nine of them are for "requests.".
_PREFIX_MOST: Final = 253 - len("requests.")
_NAME_MOST: Final = 63
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def why_refused(full_name: str) -> str:
    """Why kubelet takes no resource of this name ("rdma/hca"), in words and with the remedy; empty if it does."""
    prefix, slash, name = full_name.partition("/")
    if not slash or "/" in name:
        return "kubelet wants prefix/name, with one '/'; write it as rdma/hca_shared"
    return _why_no_prefix(prefix) or _why_no_name(name)


def _why_no_prefix(prefix: str) -> str:
    if not prefix:
        return "it has no prefix, and kubelet wants one; write it as example.com/rail0_vf"
    if prefix.endswith("kubernetes.io"):
        return "prefixes that end with kubernetes.io are Kubernetes' own; choose another"
    if prefix.startswith("requests."):
        return "a prefix that begins with 'requests.' is a quota's; choose another"
    if len(prefix) > _PREFIX_MOST:
        return f"its prefix has {len(prefix)} characters, and kubelet takes at most {_PREFIX_MOST}; shorten it"
    if not all(map(_LABEL.fullmatch, prefix.split("."))):
        return (
            "kubelet takes a prefix only if it could be a DNS name: of a-z, 0-9, '-' and '.', and each part between "
            "dots begins and ends with a letter or digit; write it as example.com"
        )
    return ""


def _why_no_name(name: str) -> str:
    if len(name) > _NAME_MOST:
        return f"its name has {len(name)} characters after the '/', and kubelet takes at most {_NAME_MOST}; shorten it"
    if not _NAME.fullmatch(name):
        return (
            "kubelet takes a name only of A-Z, a-z, 0-9, '-', '_' and '.', and the first and last must be a letter or "
            "digit; write it as rail0_vf"
        )
    return ""
