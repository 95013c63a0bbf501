"""The importer of the frozen program: it finds modules in archive.py's one file.

The interpreter runs it first.  It saves time twice: Python's own importer searches each directory of sys.path for each
module, and the launcher checks every carried file.
"""

import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec

# Not from the module types, which cannot be imported yet.
ModuleType = type(sys)


class Modules:
    """An importer."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Held open, because an upgrade may remove the file before a process has imported all modules.
        self._fd = posix.open(f"{directory}/modules", posix.O_RDONLY)
        size = int.from_bytes(posix.pread(self._fd, 8, 0), "little")
        self._table = marshal.loads(posix.pread(self._fd, size, 8))  # noqa: S302
        self._start = 8 + size

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return a module's spec; None if it is not in the file, as extensions are not."""
        if name not in self._table:
            return None
        is_package, start, size = self._table[name]
        directory = f"{self._directory}/{name.replace('.', '/')}"
        spec = ModuleSpec(name, self, origin=f"{directory}.pyc", loader_state=(start, size), is_package=is_package)
        if is_package:
            # The directory of its extensions.
            spec.submodule_search_locations = [directory]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the interpreter create the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code."""
        start, size = module.__spec__.loader_state
        exec(marshal.loads(posix.pread(self._fd, size, self._start + start)), module.__dict__)  # noqa: S102, S302

    def get_source(self, name: str) -> str | None:
        """Return the source of a module of ours, for the lines of a traceback (linecache)."""
        import zlib  # noqa: PLC0415  # no command needs it

        with open(f"{self._directory}/sources.z", "rb") as file:
            return marshal.loads(zlib.decompress(file.read())).get(name)  # noqa: S302


# After the importers of built-in and frozen modules, before that of files.
sys.meta_path.insert(2, Modules(sys.path[0]))
__import__("start")
