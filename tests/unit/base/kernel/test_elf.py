"""A program's machine.  The numbers are those of elf.h."""

import platform
from pathlib import Path

import pytest

from base.kernel import files


def header(word: int, order: int, number: int) -> bytes:
    """By man 5 elf: sixteen bytes of identification, a type, a machine."""
    how = "little" if order == 1 else "big"
    return b"\x7fELF" + bytes([word, order, 1]) + bytes(9) + b"".join(n.to_bytes(2, how) for n in (2, number))


def test_of_this_machine() -> None:
    assert files.machine("/bin/true") == platform.machine()
    with Path("/bin/true").open("rb") as file:
        file.seek(5)
        assert files.machine(file.fileno()) == platform.machine()
        assert file.tell() == 5


@pytest.mark.parametrize(
    ("word", "order", "number", "name"),
    [
        (2, 1, 62, "x86_64"),
        (2, 1, 183, "aarch64"),
        (1, 1, 40, "armv7l"),
        (2, 2, 22, "s390x"),
        (2, 1, 8, "machine 8 of ELF"),
        (2, 2, 183, "machine 183 of ELF"),
    ],
)
def test_of_others(tmp_path: Path, word: int, order: int, number: int, name: str) -> None:
    (tmp_path / "program").write_bytes(header(word, order, number) + bytes(44))
    assert files.machine(f"{tmp_path}/program") == name


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\nexec something\n"])
def test_of_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "program").write_bytes(content)
    assert files.machine(f"{tmp_path}/program") == ""
