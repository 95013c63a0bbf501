"""Whether only root can change what a path leads to.  tests/attack has the attempts of others."""

from pathlib import Path

import pytest

from base.protocol.errors import InvalidConfig
from base.state import trust


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parent" / "folder").mkdir(parents=True, mode=0o700)
    return tmp_path / "parent" / "folder"


def test_a_parent_that_others_can_change(folder: Path) -> None:
    folder.parent.chmod(0o777)
    with pytest.raises(InvalidConfig, match=f"can change {folder.parent} "):
        trust.refuse_unless_ours(str(folder))


def test_another_in_the_place_of_one_that_was_found_good(folder: Path) -> None:
    trust.refuse_unless_ours(str(folder))
    folder.parent.chmod(0o777)
    folder.rename(folder.with_name("before"))
    folder.mkdir(0o700)
    with pytest.raises(InvalidConfig, match=f"can change {folder.parent} "):
        trust.refuse_unless_ours(str(folder))


def test_a_link_that_leads_through_what_others_can_change(tmp_path: Path, folder: Path) -> None:
    folder.parent.chmod(0o777)
    (tmp_path / "link").symlink_to("parent/folder")
    with pytest.raises(InvalidConfig, match=f"can change {folder.parent} "):
        trust.refuse_unless_safe(str(tmp_path / "link"))
