#!/bin/bash
# sbr-link-local-gateway.sh   Show that the CNI plugin sbr removes a route whose gateway is a link-local IPv6 address.
#
# Software    sbr of the CNI project's plugins, in the version below.
# Behaviour   sbr copies a route of the interface into the table of an address if that address's network contains the route's
#             gateway, or if the route has neither gateway nor source.  Then it removes all routes of the interface from the
#             main table.  fe80::1 is in the network of no global address, so a route by it is removed without a copy.
# Effect      ADD succeeds, and its result still has the route, but the pod has it in no table.  Routers announce themselves
#             with link-local addresses, so such a gateway is usual (RFC 4861, 6.2.1).
# Remedy      In sbr 1.10.0: name the gateway in "gateways", too.  policyRouting of hpn keeps the route in its table.
#
# Needs Go 1.26 or later, iproute2, and root or user namespaces.  The modules go into a temporary folder.  The output of
# 2026-11-29:
#
#   a gateway in the address's network       sbr: 0   tables with the default route: main before, 100 after
#   a link-local gateway                     sbr: 0   tables with the default route: main before, none after
#   a link-local gateway, also in gateways   sbr: 0   tables with the default route: main before, 100 after
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=v1.10.0
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export GOPATH=$work/go GOBIN=$work GOFLAGS=-modcacherw
go install "github.com/containernetworking/plugins/plugins/meta/sbr@$version" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }

# An interface as macvlan with the IPAM plugin static leaves it; then sbr, the next plugin of the list.
cat >"$work/pod" <<'END'
set -euo pipefail
mount -t tmpfs none /run
ip netns add pod
pod() { ip -n pod -6 "$@"; }
tables() {
    local found
    found=$(pod route show default table all | sed -E 's/.* table ([0-9]+) .*/\1/; t; s/.*/main/')
    echo "${found:-none}"
}

pod link add eth1 type veth peer name far
pod link set far up
pod link set eth1 up
pod address add fd00:56::2/64 dev eth1 nodad
pod route add default via "$2" dev eth1
before=$(tables)
status=0
CNI_COMMAND=ADD CNI_CONTAINERID=c CNI_NETNS=/run/netns/pod CNI_IFNAME=eth1 CNI_PATH=/ "$1" >said 2>log <<JSON || status=$?
{"cniVersion": "1.0.0", "name": "net", "type": "sbr", "gateways": [$3], "prevResult": {
  "cniVersion": "1.0.0", "interfaces": [{"name": "eth1", "sandbox": "/run/netns/pod"}],
  "ips": [{"interface": 0, "address": "fd00:56::2/64"}], "routes": [{"dst": "::/0", "gw": "$2"}]}}
JSON
echo "sbr: $status   tables with the default route: $before before, $(tables) after"
END
cd "$work"
pod() { unshare --user --map-root-user --net --mount bash "$work/pod" "$work/sbr" "$@"; }
said=$(
    printf '%-40s %s\n' "a gateway in the address's network" "$(pod fd00:56::1 '')" "a link-local gateway" "$(pod fe80::1 '')" \
        "a link-local gateway, also in gateways" "$(pod fe80::1 '"fe80::1"')"
)
echo "$said"
[[ $said == "a gateway in the address's network       sbr: 0   tables with the default route: main before, 100 after
a link-local gateway                     sbr: 0   tables with the default route: main before, none after
a link-local gateway, also in gateways   sbr: 0   tables with the default route: main before, 100 after" ]] ||
    { echo "the behaviour has changed" >&2 && exit 1; }
