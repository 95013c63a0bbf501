"""What the operator's commands print (ctl/main.py)."""

from dataclasses import replace
from pathlib import Path

import pytest
from unit.test_inspect import VF, save

from ctl.main import main


def test_names_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each byte that is no UTF-8 is shown as an escape."""
    save(tmp_path, replace(VF, boot="an older one", pod="default/\udcff"))
    assert main(["hpn", "gc", "--dry-run", "--state-dir", f"{tmp_path}", "--data-dir", f"{tmp_path}"]) == 0
    assert "would undo hpn0 of default/\\udcff," in capsys.readouterr().out
