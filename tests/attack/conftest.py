"""The attackers of docs/security.md: a file each.  They have the netns tier's host and pods, and its needs."""

from netns.conftest import host, ipvlan, kind, make_pod, pod

__all__ = ["host", "ipvlan", "kind", "make_pod", "pod"]
