"""The messages between kubelet and hpn: device plugins, their registration, and the devices of containers.

The three .proto files are ours, with the services, messages and fields that we use.  Packages, names and numbers are
Kubernetes' (kubelet: pkg/apis).  `make protocols` generates the ``_pb2`` files.
"""
