"""A real Kubernetes cluster of two nodes on this machine, for tests and a demo: see docs/develop/testing.md.

The entry is two_nodes.Cluster.  Nothing is imported here, because the stand-in for Multus starts often.
"""
