"""The backends, Kubernetes and etcd: where the documents of shared pools are."""
