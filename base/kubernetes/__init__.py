"""Requests to the API server: HTTP, TLS and a kubeconfig's credential.  etcd's gateway has the same HTTP."""
