"""Files of another architecture in place of this machine's (packaging/target.py)."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.pages import ROOT

HERE = sys.implementation._multiarch
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, with a root of arm64 that has a library, an extension and a wheel."""
    for path in ("usr/lib/aarch64-linux-gnu/libfound.so.3", "lib/aarch64-linux-gnu/libc.so.6", f"usr/bin/{PYTHON}"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "_fast.cpython-311-aarch64-linux-gnu.so").touch()
    return loaded(monkeypatch, tmp_path)


def loaded(monkeypatch: pytest.MonkeyPatch, root: Path | str) -> ModuleType:
    monkeypatch.setenv("HPN_ROOT", f"{root}")
    monkeypatch.syspath_prepend(ROOT / "packaging")
    monkeypatch.delitem(sys.modules, "target", raising=False)
    return importlib.import_module("target")


def test_a_file_of_a_package(there: ModuleType, tmp_path: Path) -> None:
    assert there.counterpart(f"/usr/lib/{HERE}/libfound.so.3") == tmp_path / "usr/lib/aarch64-linux-gnu/libfound.so.3"
    # /lib is a link to /usr/lib, and the package lists /lib.
    assert there.counterpart(f"/usr/lib/{HERE}/libc.so.6") == tmp_path / "lib/aarch64-linux-gnu/libc.so.6"
    assert there.counterpart(f"/usr/bin/{PYTHON}") == tmp_path / "usr/bin" / PYTHON


def test_a_file_of_a_wheel(there: ModuleType, tmp_path: Path) -> None:
    site = f"{sys.prefix}/lib/{PYTHON}/site-packages"
    assert there.counterpart(f"{site}/_fast.cpython-311-{HERE}.so").parent == tmp_path / "python"


def test_a_file_of_ours_stays(there: ModuleType) -> None:
    assert there.counterpart(ROOT / "cni" / "main.py") == ROOT / "cni" / "main.py"


def test_what_is_missing_ends_the_build(there: ModuleType) -> None:
    with pytest.raises(
        SystemExit, match=r"libmissing\.so\.1 has no counterpart for aarch64-linux-gnu; add its package"
    ):
        there.counterpart(f"/usr/lib/{HERE}/libmissing.so.1")


def test_another_python_ends_the_build(there: ModuleType, tmp_path: Path) -> None:
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    here = ".".join(map(str, sys.version_info[:3]))
    status.write_text(f"Package: {PYTHON}-minimal\nArchitecture: arm64\nVersion: {here}-6+deb12u8\n\n")
    there.refuse_another_python()
    status.write_text(f"Package: {PYTHON}-minimal\nVersion: 3.11.99-1\n\n")
    with pytest.raises(SystemExit, match=r"Python is 3\.11\.99 for aarch64-linux-gnu, and "):
        there.refuse_another_python()


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = loaded(monkeypatch, "")
    assert here.counterpart("/usr/lib/nothing") == Path("/usr/lib/nothing")
    found = dict(here.libraries(Path(os.path.realpath(sys.executable))))
    assert found["libc.so.6"].exists()
