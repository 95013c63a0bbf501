//go:build programs

// Package programs imports what netns-fixtures/cluster/build builds, so that `go mod tidy` finds what that needs.
// A new version: write it into go.mod, also into every replacement (v1.36.3 has its staging modules as v0.36.3), and
// run `go mod tidy`.
package programs

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
