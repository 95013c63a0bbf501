#!/bin/bash
# multus-device-info.sh   Show that Multus names one device for all interfaces of a result, and one list of gateways.
#
# Software    CreateNetworkStatuses of network-attachment-definition-client, in the version below; Multus 4.3.0 writes the
#             annotation k8s.v1.cni.cncf.io/network-status of a pod with it.
# Behaviour   A result with several interfaces in the pod becomes an entry for each.  Every entry gets the one device information
#             of the network, and the gateways of all default routes, also of those that leave by another interface.
# Effect      A program that reads the annotation takes the first interface's PCI device for that of all others.
# Remedy      Write no device information for a result with several interfaces, as hpn does for rails, and read each
#             interface's device from /sys/class/net/NAME/device in the pod.
#
# Needs Go 1.25 or later; no root.  The modules go into a temporary folder.  The output of 2026-11-30:
#
#   net1 10.1.0.2 device 0000:3b:00.2 gateways 10.1.0.1,10.2.0.1
#   net2 10.2.0.2 device 0000:3b:00.2 gateways 10.1.0.1,10.2.0.1
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=v1.7.6
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export GOPATH=$work/go GOFLAGS=-modcacherw

mkdir "$work/show"
cd "$work/show"
cat >go.mod <<'GO'
module example.com/show
go 1.25
GO
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"
	nad "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
)

const returned = `{"cniVersion": "1.0.0",
  "interfaces": [
    {"name": "rail0"}, {"name": "net1", "sandbox": "/run/netns/pod"},
    {"name": "rail1"}, {"name": "net2", "sandbox": "/run/netns/pod"}],
  "ips": [{"interface": 1, "address": "10.1.0.2/24"}, {"interface": 3, "address": "10.2.0.2/24"}],
  "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "0.0.0.0/0", "gw": "10.2.0.1"}]}`

func main() {
	result := &current.Result{}
	if err := json.Unmarshal([]byte(returned), result); err != nil {
		panic(err)
	}
	device := &nad.DeviceInfo{Type: nad.DeviceInfoTypePCI, Version: "1.1.0", Pci: &nad.PciDevice{PciAddress: "0000:3b:00.2"}}
	entries, err := utils.CreateNetworkStatuses(result, "default/rails", false, device)
	if err != nil {
		panic(err)
	}
	for _, one := range entries {
		fmt.Println(one.Interface, strings.Join(one.IPs, ","), "device", one.DeviceInfo.Pci.PciAddress, "gateways", strings.Join(one.Gateway, ","))
	}
}
GO
{ go get "github.com/k8snetworkplumbingwg/network-attachment-definition-client@$version" && go mod tidy; } >"$work/log" 2>&1 ||
    { cat "$work/log" >&2 && exit 1; }
said=$(go run .)
echo "$said"
[[ $said == 'net1 10.1.0.2 device 0000:3b:00.2 gateways 10.1.0.1,10.2.0.1
net2 10.2.0.2 device 0000:3b:00.2 gateways 10.1.0.1,10.2.0.1' ]] || { echo "the behaviour has changed" >&2 && exit 1; }
