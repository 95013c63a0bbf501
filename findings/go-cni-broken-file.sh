#!/bin/bash
# go-cni-broken-file.sh   Show that a broken network file which sorts first makes go-cni drop a network that works.
#
# Software    go-cni, containerd's library for CNI, in the version below; containerd 2.4.2 uses it.
# Behaviour   Load reads the files of the directory in the order of their names, up to the number of networks that it needs.  It
#             forgets the present networks first, and ends at the first file that it cannot parse.
# Effect      A program that writes a file such as 00-new.conflist in place leaves the node without a network while the file is
#             incomplete, and for as long as it is broken: containerd reports NetworkReady=false, and no pod starts.
# Remedy      Write a file under another ending, and rename it in the same directory.  hpn doctor finds such a file
#             (network-broken).
#
# Needs Go 1.23 or later; no root.  The modules go into a temporary folder.  The output of 2026-11-28:
#
#   a good file                            loaded: true   networks: 1
#   and a broken file that sorts last      loaded: true   networks: 1
#   and one that sorts first               loaded: false  networks: 0
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=v1.1.14
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
export GOPATH=$work/go GOFLAGS=-modcacherw

mkdir "$work/show" "$work/net.d"
cd "$work/show"
cat >go.mod <<'END'
module example.com/show
go 1.23
END
cat >main.go <<'END'
package main

import (
	"fmt"
	"os"
	"path/filepath"

	cni "github.com/containerd/go-cni"
)

func main() {
	dir := os.Args[1]
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			panic(err)
		}
	}
	write("10-good.conflist", `{"cniVersion": "1.0.0", "name": "good", "plugins": [{"type": "good"}]}`)
	library, err := cni.New(cni.WithMinNetworkCount(1), cni.WithPluginConfDir(dir))
	if err != nil {
		panic(err)
	}
	load := func(what string) {
		loaded := library.Load(cni.WithDefaultConf) == nil
		fmt.Printf("%-38s loaded: %-5t  networks: %d\n", what, loaded, len(library.GetConfig().Networks))
	}
	load("a good file")
	write("20-broken.conflist", "{")
	load("and a broken file that sorts last")
	write("00-broken.conflist", "{")
	load("and one that sorts first")
}
END
go get "github.com/containerd/go-cni@$version" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
said=$(go run . "$work/net.d")
echo "$said"
[[ $said == "a good file                            loaded: true   networks: 1
and a broken file that sorts last      loaded: true   networks: 1
and one that sorts first               loaded: false  networks: 0" ]] || { echo "the behaviour has changed" >&2 && exit 1; }
