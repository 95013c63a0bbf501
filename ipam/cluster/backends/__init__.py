"""The backends, Kubernetes and etcd, and the HTTP client that they share."""
