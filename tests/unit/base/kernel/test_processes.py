"""Facts about other processes, which choose their names."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.topology import until

from agent import listening
from base.kernel import netns


@pytest.mark.parametrize("name", [b"\xff", b"a) Z 1 ("])
def test_a_name_that_is_no_text_or_no_name(tmp_path: Path, name: bytes) -> None:
    """The kernel prints a process's name into its stat as it is."""
    program = os.path.join(os.fsencode(tmp_path), name)
    shutil.copy(str(shutil.which("sleep")), program)
    with subprocess.Popen([program, b"60"]) as it:
        try:
            until(lambda: Path(f"/proc/{it.pid}/comm").read_bytes() == name + b"\n")
            assert 0 <= netns.age(str(it.pid)) < 60
            assert not listening._has_ended(it.pid)
        finally:
            it.kill()
