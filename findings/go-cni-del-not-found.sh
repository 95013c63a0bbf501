#!/bin/bash
# go-cni-del-not-found.sh   Show that go-cni takes a failed DEL for a success if the plugin's message has "not found" in it.
#
# Software    go-cni, containerd's library for CNI, in the version below; containerd 2.4.2 uses it.
# Behaviour   Remove ignores every error of DEL whose text contains "not found", whatever its code, and also one that contains
#             "no such file or directory" if the container has no namespace any more.
# Effect      A plugin that asks for a repetition, with the specification's code 11 for that, is not asked again: containerd
#             removes the pod's sandbox, and what the plugin could not undo stays.  Other words for the same fault are repeated.
# Remedy      Leave these words out of a DEL's errors.  All of hpn's do.
#
# Needs Go 1.23 or later; no root.  The modules go into a temporary folder.  The output of 2026-11-29:
#
#   DEL: 11 "the driver of eth1 restarts"      Remove: plugin type="stand-in" failed (delete): the driver of eth1 restarts
#   DEL: 11 "the driver of eth1 is not found"  Remove: success
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=v1.1.14
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export GOPATH=$work/go GOFLAGS=-modcacherw

mkdir "$work/show" "$work/bin"
cat >"$work/bin/stand-in" <<'END'
#!/bin/sh
cat >/dev/null
[ "$CNI_COMMAND" = DEL ] || exit 0
printf '{"cniVersion": "1.0.0", "code": 11, "msg": "%s"}\n' "$MESSAGE"
exit 1
END
chmod +x "$work/bin/stand-in"
cd "$work/show"
cat >go.mod <<'END'
module example.com/show
go 1.23
END
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"os"

	cni "github.com/containerd/go-cni"
)

func main() {
	conf := []byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "stand-in"}]}`)
	library, err := cni.New(cni.WithPluginDir([]string{os.Args[1]}), cni.WithConfListBytes(conf))
	if err != nil {
		panic(err)
	}
	for _, message := range []string{"the driver of eth1 restarts", "the driver of eth1 is not found"} {
		os.Setenv("MESSAGE", message)
		said := "success"
		if err := library.Remove(context.Background(), "container", "/proc/self/ns/net"); err != nil {
			said = err.Error()
		}
		fmt.Printf("%-42s Remove: %s\n", fmt.Sprintf("DEL: 11 %q", message), said)
	}
}
END
go get "github.com/containerd/go-cni@$version" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
said=$(go run . "$work/bin")
echo "$said"
[[ $said == 'DEL: 11 "the driver of eth1 restarts"      Remove: plugin type="stand-in" failed (delete): the driver of eth1 restarts
DEL: 11 "the driver of eth1 is not found"  Remove: success' ]] || { echo "the behaviour has changed" >&2 && exit 1; }
