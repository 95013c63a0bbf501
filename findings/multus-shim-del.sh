#!/bin/bash
# multus-shim-del.sh   Show that the plugin of thick Multus reports a DEL as successful that nothing has executed.
#
# Software    multus-shim, the CNI plugin of thick Multus, in the version below.  It passes each request to Multus's daemon.
# Behaviour   If the daemon does not run, or answers with an error of a network's plugin, the shim logs that.  For DEL it then
#             ends with 0 and an empty answer, as after a success.  All other commands end with an error.
# Effect      A pod that ends while the daemon restarts, is updated or evicted is gone for kubelet and the runtime, so none of
#             them sends its DEL again.  Its devices keep their settings, and its addresses stay allocated.
# Remedy      A plugin must not rely on DEL: find the pods that ended without it.  hpn's agent and "hpn gc" do so.
#
# Needs Go 1.25 or later; no root.  The modules go into a temporary folder, and the build takes some minutes.  The output of
# 2026-11-29:
#
#   multus-shim without its daemon:
#   DEL     0
#   STATUS  1  CmdStatus (shim): timed out waiting for the condition
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

module=gopkg.in/k8snetworkplumbingwg/multus-cni.v4
version=v4.3.0
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export GOPATH=$work/go GOFLAGS=-modcacherw CGO_ENABLED=0

# "go install" asks for the list of the module's versions, which the registry lacks.
cd "$work"
{
    go mod download -json "$module@$version" >downloaded.json &&
        cp --recursive --no-preserve=mode "$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' downloaded.json)" source &&
        cd source && nice -n 10 go build -mod=mod -o "$work" ./cmd/multus-shim
} >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }

# command NAME   Send the command for a pod; print the exit status and the error's message.
command() {
    local status=0
    CNI_COMMAND=$1 CNI_CONTAINERID=c CNI_NETNS=/run/netns/pod1 CNI_IFNAME=eth0 CNI_PATH=/ "$work/multus-shim" \
        >"$work/answer" 2>"$work/log" <<JSON || status=$?
{"cniVersion": "1.1.0", "name": "net", "type": "multus-shim", "socketDir": "$work/no-daemon"}
JSON
    echo "$status $(sed -n 's/.*"msg": "\(.*\)".*/ \1/p' "$work/answer")"
}

said=$(printf '%-7s %s\n' DEL "$(command DEL)" STATUS "$(command STATUS)" | sed 's/ *$//')
echo "multus-shim without its daemon:"
echo "$said"
[[ $said == "DEL     0
STATUS  1  CmdStatus (shim): timed out waiting for the condition" ]] || { echo "the behaviour has changed" >&2 && exit 1; }
