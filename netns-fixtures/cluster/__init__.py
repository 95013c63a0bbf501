"""A real Kubernetes cluster of two nodes on this machine, for tests and a demo: see docs/develop/cluster.md.

It begins with two_nodes.Cluster.  Nothing is imported here, for the stand-in for Multus, which starts often.
"""
