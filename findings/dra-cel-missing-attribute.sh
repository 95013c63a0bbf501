#!/bin/bash
# dra-cel-missing-attribute.sh   Show that one device without an attribute can fail a claim that another device satisfies.
#
# Software    k8s.io/dynamic-resource-allocation, the allocator of kube-scheduler, in the version below.
# Behaviour   A selector that reads an attribute is evaluated on each device in the order of its slice.  On a device without
#             that attribute the evaluation is an error, and the error ends the allocation of the whole claim.
# Effect      The same claim on the same devices is allocated or refused depending on their order.  A driver may list a device
#             that lacks the attribute later, for example when a PF appears beside its VFs, and claims that worked stay pending.
# Remedy      Ask for the attribute first, by has() or by "in", or read it by .?name.orValue().
#
# Needs Go 1.26 or later; no root.  The modules go into a temporary folder.  The output of 2026-11-29:
#
#   reads it, the device with it first      device: vf    error: none
#   reads it, the device without it first   device: none  error: no such key: index
#   has(), the device without it first      device: vf    error: none
#   orValue(), the device without it first  device: vf    error: none
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=v0.36.3
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export GOPATH=$work/go GOFLAGS=-modcacherw

mkdir "$work/show"
cd "$work/show"
cat >go.mod <<'END'
module example.com/show
go 1.26.0
END
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type anyClass struct{}

func (anyClass) Get(string) (*resource.DeviceClass, error)    { return &resource.DeviceClass{}, nil }
func (anyClass) List() ([]*resource.DeviceClass, error)       { return nil, nil }

func allocate(what, selector string, devices ...resource.Device) {
	node := "node1"
	slice := &resource.ResourceSlice{ObjectMeta: meta.ObjectMeta{Name: "slice"}, Spec: resource.ResourceSliceSpec{
		Driver: "example.com", NodeName: &node, Devices: devices,
		Pool: resource.ResourcePool{Name: node, ResourceSliceCount: 1, Generation: 1},
	}}
	claim := &resource.ResourceClaim{ObjectMeta: meta.ObjectMeta{Name: "claim", Namespace: "default"}}
	claim.Spec.Devices.Requests = []resource.DeviceRequest{{Name: "r", Exactly: &resource.ExactDeviceRequest{
		DeviceClassName: "any", AllocationMode: resource.DeviceAllocationModeExactCount, Count: 1,
		Selectors: []resource.DeviceSelector{{CEL: &resource.CELDeviceSelector{Expression: selector}}},
	}}}
	ctx, state := context.Background(), structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID]()}
	allocator, err := structured.NewAllocator(ctx, structured.Features{}, state, anyClass{},
		[]*resource.ResourceSlice{slice}, cel.NewCache(10, cel.Features{}))
	if err != nil {
		panic(err)
	}
	found, err := allocator.Allocate(ctx, &v1.Node{ObjectMeta: meta.ObjectMeta{Name: node}}, []*resource.ResourceClaim{claim})
	device, why := "none", "none"
	if len(found) > 0 {
		device = found[0].Devices.Results[0].Device
	}
	if err != nil {
		why = err.Error()[strings.LastIndex(err.Error(), "no such key"):]
	}
	fmt.Printf("%-39s device: %-5s error: %s\n", what, device, why)
}

func main() {
	zero := int64(0)
	pf := resource.Device{Name: "pf"}
	vf := resource.Device{Name: "vf", Attributes: map[resource.QualifiedName]resource.DeviceAttribute{"index": {IntValue: &zero}}}
	index := `device.attributes["example.com"].index`
	allocate("reads it, the device with it first", index+" == 0", vf, pf)
	allocate("reads it, the device without it first", index+" == 0", pf, vf)
	allocate("has(), the device without it first", "has("+index+") && "+index+" == 0", pf, vf)
	allocate("orValue(), the device without it first", `device.attributes["example.com"].?index.orValue(-1) == 0`, pf, vf)
}
END
for module in api apimachinery dynamic-resource-allocation; do
    go get "k8s.io/$module@$version" || exit 1
done >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
go mod tidy >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
said=$(go run .)
echo "$said"
[[ $said == "reads it, the device with it first      device: vf    error: none
reads it, the device without it first   device: none  error: no such key: index
has(), the device without it first      device: vf    error: none
orValue(), the device without it first  device: vf    error: none" ]] || { echo "the behaviour has changed" >&2 && exit 1; }
