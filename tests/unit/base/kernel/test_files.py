"""Files that are whole or absent."""

from pathlib import Path

import pytest

from base.kernel import files


def test_a_failure_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with files.open_directory(f"{tmp_path}") as folder, pytest.raises(IsADirectoryError):
        files.replace(folder, "0", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
