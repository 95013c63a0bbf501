"""The importer of the frozen program: it finds modules in the one file that archive.py wrote.

The interpreter runs it first.  Python's own importer looks into each directory of sys.path for each module, and the
launcher looks at every carried file.
"""

import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec

# Not from types, which is not there yet.
ModuleType = type(sys)


class Modules:
    """An importer."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Held open: an upgrade may remove the file under a process that has not imported everything yet.
        self._fd = posix.open(f"{directory}/modules", posix.O_RDONLY | posix.O_CLOEXEC)
        size = int.from_bytes(posix.pread(self._fd, 8, 0), "little")
        self._table = marshal.loads(posix.pread(self._fd, size, 8))  # noqa: S302
        self._start = 8 + size

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Where a module is; None if it is not in the file, as extensions are not."""
        if name not in self._table:
            return None
        is_package, start, size = self._table[name]
        directory = f"{self._directory}/{name.replace('.', '/')}"
        spec = ModuleSpec(name, self, origin=f"{directory}.pyc", loader_state=(start, size), is_package=is_package)
        if is_package:
            # Where its extensions are.
            spec.submodule_search_locations = [directory]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        """Run its code."""
        start, size = module.__spec__.loader_state
        exec(marshal.loads(posix.pread(self._fd, size, self._start + start)), module.__dict__)  # noqa: S102, S302

    def get_source(self, name: str) -> str | None:
        """The text of a module of ours, for the lines of a traceback (linecache)."""
        import zlib  # noqa: PLC0415  # no command needs it

        with open(f"{self._directory}/sources.z", "rb") as file:
            return marshal.loads(zlib.decompress(file.read())).get(name)  # noqa: S302


# Behind what is built in and frozen, before what is in files.
sys.meta_path.insert(2, Modules(sys.path[0]))
__import__("start")
