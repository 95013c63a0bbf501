"""Append the files of a program's directory and a table of them to the launcher, and write their offsets into it.

    pack.py LAUNCHER DIRECTORY OUTPUT

The structs are those of carried.h, in little-endian order as on x86-64 and arm64.  The program carries the C library of
its build, with the loader, because the node's may be older, or absent.

The version is a digest of all carried data.  So two builds of one commit share an unpacked directory, and a launcher
recognises the agent of another build.
"""

import hashlib
import json
import re
import shutil
import struct
import sys
from pathlib import Path

import supply
import target

FILE = struct.Struct("<QQI108s")
CARRIED = struct.Struct("<24sQQQQQ")
PATH_MOST = 107  # bytes, without the zero byte
PLACE = b"packed over this"
FNV_OFFSET, FNV_PRIME = 14695981039346656037, 1099511628211
LOADER = "ld-hpn.so.2"


def add_libraries(directory: Path) -> dict[str, Path]:
    """Copy the libraries that the directory's programs and libraries need into it; return the origin of each."""
    taken = dict[str, Path]()
    todo = [p for p in directory.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    for path in todo:  # grows by the added libraries
        for name, found in target.libraries(path):
            copy = directory / (name or LOADER)
            if not copy.exists() and not (directory / found.name).exists():
                shutil.copy(found, copy)
                taken[copy.name] = found
                todo.append(copy)
    return taken


def fnv(data: bytes) -> int:
    """Return FNV-1a of 64 bits, by words of eight bytes."""
    total = FNV_OFFSET
    for (word,) in struct.iter_unpack("<Q", data):
        total = (total ^ word) * FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return total


def pack(launcher: bytes, directory: Path) -> bytes:
    """Return the launcher with the directory's files appended."""
    start = len(launcher) + -len(launcher) % 8
    body, table = bytes(start - len(launcher)), b""
    paths = sorted(p for p in directory.rglob("*") if p.is_file())
    for path in paths:
        data = path.read_bytes()
        if data[:4] == b"\x7fELF" and data[18:20] != launcher[18:20]:  # the machine (man 5 elf)
            sys.exit(f"{path} is for another architecture than the launcher; build both for one: make binary")
        name = str(path.relative_to(directory)).encode()
        if len(name) > PATH_MOST:
            sys.exit(f"{name.decode()}: a carried file's path has {PATH_MOST} bytes at most")
        table += FILE.pack(len(launcher) + len(body), len(data), path.stat().st_mode & 0o755 | 0o400, name)
        body += data + bytes(-len(data) % 8)
    carried = body[start - len(launcher) :] + table
    version = hashlib.sha256(carried).hexdigest()[:16].encode()
    whole = bytearray(launcher + body + table)
    (place,) = (found.start() for found in re.finditer(PLACE, launcher))
    CARRIED.pack_into(whole, place, version, start, len(launcher) + len(body), len(paths), fnv(carried), len(whole))
    return bytes(whole)


def main() -> None:
    launcher, directory, output = map(Path, sys.argv[1:])
    taken = json.loads(directory.with_name("taken.json").read_text())
    files = {name: Path(path) for name, path in taken["files"].items()} | add_libraries(directory)
    found = supply.components(files, map(Path, taken["modules"]))
    supply.carry_licenses(found, directory, output.with_name(f"{output.name}.licenses.txt"))
    supply.owner(Path(__file__)).files.add(supply.LICENSES)
    packed = pack(launcher.read_bytes(), directory)
    output.write_bytes(packed)
    output.chmod(0o755)
    version = hashlib.sha256(packed).hexdigest()[:16]
    output.with_name(f"{output.name}.cdx.json").write_text(supply.sbom(found, directory, version))
    if older := supply.older_than_the_release(found):
        sys.stderr.write(f"other machines may build another file; apt-get upgrade has: {', '.join(older)}\n")


if __name__ == "__main__":
    main()
