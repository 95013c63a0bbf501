"""Which machine a program is for (man 5 elf)."""

import os
from typing import Final

# As `uname -m` calls them: of a word size and byte order, then of a machine.
_MACHINES: Final = {
    (2, 1): {0x3E: "x86_64", 0xB7: "aarch64", 0xF3: "riscv64", 0x15: "ppc64le", 0x102: "loongarch64"},
    (2, 2): {0x15: "ppc64", 0x16: "s390x"},
    (1, 1): {0x03: "i686", 0x28: "armv7l"},
}


def machine(path: str | int) -> str:
    """The machine's name as `uname -m` has it, or what is in the file in its place; empty for what is no ELF file.

    ``path`` may be a descriptor, which is not read from.  Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) if isinstance(path, str) else path
    try:
        head = os.pread(fd, 20, 0)
    finally:
        if fd is not path:
            os.close(fd)
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return ""
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return _MACHINES.get((head[4], head[5]), {}).get(number, f"machine {number} of ELF")
