#!/bin/bash
# qemu-exit-status.sh   Show that QEMU's exit status 1 has two meanings: QEMU did not start, and a guest reported success.
#
# Software    QEMU's isa-debug-exit device; qemu-system-x86 of Debian 12 in the version below.
# Behaviour   A guest that writes N to the device ends QEMU with 2N+1, so the usual value for success, 0, ends it with 1.  QEMU
#             also ends with 1 if it does not start, for example with a processor that this version does not know.
# Effect      A script that computes (status - 1) / 2 reports success for a QEMU that never ran.
# Remedy      Let the guest report its result in another way, such as a file or a port (netns-fixtures/guest/setup).
#
# Needs a Debian 12 for x86-64 with apt lists; no root.  The packages go into a temporary folder.  The output of 2026-11-28:
#
#   QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)
#   the guest writes 0                  1
#   the guest writes 3                  7
#   QEMU does not know the processor    1
#
# It ends with 0 if the output is the same, and with 1 if the behaviour has changed or the version is not available.
set -euo pipefail

version=1:7.2+dfsg-7+deb12u18+b3
work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

# With an empty list of installed packages apt names everything that QEMU needs.
: >"$work/status"
cd "$work"
apt-get --simulate --option Dir::State::status="$work/status" install --no-install-recommends "qemu-system-x86=$version" |
    awk '$1 == "Inst" { gsub(/[(]/, "", $3); print $2 "=" $3 }' >needed
xargs apt-get --quiet=2 --option APT::Sandbox::User="$(id -un)" download <needed
for package in *.deb; do dpkg-deb --extract "$package" root; done

qemu() {
    local libraries=lib/x86_64-linux-gnu
    QEMU_MODULE_DIR=root/usr/$libraries/qemu timeout 600 "root/$libraries/ld-linux-x86-64.so.2" \
        --library-path "root/$libraries:root/usr/$libraries" \
        root/usr/bin/qemu-system-x86_64 -L root/usr/share/seabios -L root/usr/share/qemu -display none "$@"
}

# guest N   Boot a machine whose boot sector writes N to the device; print QEMU's exit status.
guest() {
    local status=0
    printf '\xba\xf4\x00\xb0%b\xee\xf4' "\\x$(printf %02x "$1")" >sector # mov dx,0xf4; mov al,N; out dx,al; hlt
    truncate --size=510 sector
    printf '\x55\xaa' >>sector
    qemu -nodefaults -device isa-debug-exit,iobase=0xf4,iosize=4 -drive file=sector,format=raw,if=floppy || status=$?
    echo "$status"
}

unknown() {
    local status=0
    qemu -nodefaults -cpu Nosuchcpu 2>said || status=$?
    grep --quiet "unable to find CPU model" said && echo "$status"
}

qemu --version | sed -n 1p
seen=("$(guest 0)" "$(guest 3)" "$(unknown)")
printf '%-35s %s\n' "the guest writes 0" "${seen[0]}" "the guest writes 3" "${seen[1]}" \
    "QEMU does not know the processor" "${seen[2]}"
[[ ${seen[*]} == "1 7 1" ]] || { echo "the behaviour has changed" >&2 && exit 1; }
