"""What kubelet and we say to each other: a device plugin per resource, its registration, and which pod has what.

The three .proto files are ours, with the services, messages and fields that we use.  Packages, names and numbers are
Kubernetes' (kubelet: pkg/apis).  `make protocols` makes the ``_pb2`` files of them.
"""
