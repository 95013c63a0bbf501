"""hpn node without a resource by DRA imports nothing for it."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import ROOT

from node import daemon

LOADED = "import sys, node.main; print(*sorted(one for one in sys.modules if one.startswith('node.dra')))"


def test_most_nodes_need_none_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_an_earlier_file_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver serves for slices or claims that may be left, and not for the directory alone, which stays."""
    claims = tmp_path / "claims"
    monkeypatch.setattr(daemon, "CLAIMS_DIR", f"{claims}")
    assert not daemon._has_dra(tmp_path)
    claims.mkdir()
    assert not daemon._has_dra(tmp_path)
    (claims / "0d4b2f6e-7c1a-4f38-9e55-2a6b8c9d0e1f.json").touch()
    assert daemon._has_dra(tmp_path)
    claims = claims.rename(tmp_path / "away")
    (tmp_path / ".hpn-dra.json").touch()
    assert daemon._has_dra(tmp_path)
