#!/bin/bash
# whereabouts-gateway.sh   Show that whereabouts allocates the address of the network's own gateway to a pod.
#
# Software    whereabouts, an IPAM plugin for a whole cluster, in the version below: its reader of configurations and its
#             choice of an address.
# Behaviour   "gateway" only goes into the result.  The range still has its address, and without "range_start" it is often the
#             lowest one, so the first pod gets it.  host-local leaves the gateway's address out of its ranges.
# Effect      The pod answers ARP for the router, and all hosts of the network lose their way out.  With a default route in
#             "routes" the pod fails instead, because Linux refuses a gateway that is an address of the pod.
# Remedy      Name the gateway's address in "exclude", also that of a router that only "routes" name.  hpn-ipam gives no pod
#             the former, and the latter only to a pod that requests it.
#
# Needs Go 1.23 or later; no root.  The modules go into a temporary folder.  The output of 2026-11-29:
#
#   range 10.1.0.0/24, gateway 10.1.0.1                       the first pod gets 10.1.0.1/24
#   range 10.1.0.0/24, gateway 10.1.0.1, exclude 10.1.0.1/32  the first pod gets 10.1.0.2/24
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=v0.9.2
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export GOPATH=$work/go GOFLAGS=-modcacherw

mkdir "$work/show"
cd "$work/show"
echo '{"kubernetes": {"kubeconfig": "/etc/kubernetes/whereabouts.kubeconfig"}}' >whereabouts.conf # nothing opens that file
cat >go.mod <<'END'
module example.com/show
go 1.23
END
cat >main.go <<'END'
package main

import (
	"encoding/json"
	"fmt"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/allocate"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/config"
)

func first(what string, more map[string]any) {
	ipam := map[string]any{"type": "whereabouts", "range": "10.1.0.0/24", "gateway": "10.1.0.1"}
	for key, value := range more {
		ipam[key] = value
	}
	conf, _ := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "net", "type": "macvlan", "ipam": ipam})
	read, _, err := config.LoadIPAMConfig(conf, "K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod1", "whereabouts.conf")
	if err != nil {
		panic(err)
	}
	address, _, err := allocate.AssignIP(read.IPRanges[0], nil, "container", "default/pod1", "net1")
	if err != nil {
		panic(err)
	}
	fmt.Printf("%-57s the first pod gets %s\n", what, address.String())
}

func main() {
	first("range 10.1.0.0/24, gateway 10.1.0.1", nil)
	first("range 10.1.0.0/24, gateway 10.1.0.1, exclude 10.1.0.1/32", map[string]any{"exclude": []string{"10.1.0.1/32"}})
}
END
{ go get "github.com/k8snetworkplumbingwg/whereabouts@$version" && go mod tidy; } >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
said=$(go run . 2>"$work/log") || { cat "$work/log" >&2 && exit 1; }
echo "$said"
[[ $said == "range 10.1.0.0/24, gateway 10.1.0.1                       the first pod gets 10.1.0.1/24
range 10.1.0.0/24, gateway 10.1.0.1, exclude 10.1.0.1/32  the first pod gets 10.1.0.2/24" ]] ||
    { echo "the behaviour has changed" >&2 && exit 1; }
