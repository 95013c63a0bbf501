"""The attackers of docs/security.md, a file or a folder each, with the netns tier's host and pods."""

from netns.conftest import host, ipvlan, kind, make_pod, pod

__all__ = ["host", "ipvlan", "kind", "make_pod", "pod"]
