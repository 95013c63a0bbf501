"""Images of the cluster, made without a registry: busybox, for pods and for their sandboxes, and hpn's."""

import hashlib
import io
import json
import shlex
import shutil
import string
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "localhost/busybox:1"
FILES = {"etc/passwd": b"root:x:0:0:root:/:/bin/sh\n", "etc/group": b"root:x:0:\n"}
# A sandbox runs this for as long as its pod exists.
COMMAND = ["/bin/sh", "-c", "trap exit TERM INT; sleep 2147483647 & wait"]


def write(archive: Path) -> None:
    """Write busybox's archive, in the form of `docker save`."""
    _write(archive, NAME, _layer(), {"Env": ["PATH=/bin"], "Cmd": COMMAND, "WorkingDir": "/"})


def build(
    recipe: Path, context: Path, name: str, archive: Path, *, architecture: str = "amd64", **arguments: str
) -> None:
    """Replace `docker build --file RECIPE --tag NAME CONTEXT` and `docker save`.

    ``architecture`` replaces `--platform`, and ``arguments`` replace `--build-arg`.

    Raises ValueError for a recipe with more than FROM scratch, ARG with a default, COPY of a file and ENTRYPOINT.
    """
    layer, config, known = io.BytesIO(), dict[str, Any](), dict[str, str]()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for line in recipe.read_text().splitlines():
            match line.split(maxsplit=1):
                case [] | ["FROM", "scratch"]:
                    pass
                case [word, *_] if word.startswith("#"):
                    pass
                case ["ARG", words]:
                    known |= [words.split("=", 1)]
                    known |= {key: value for key, value in arguments.items() if key in known}
                case ["COPY", words]:
                    source, target = shlex.split(string.Template(words).substitute(known))
                    _add(tar, target.lstrip("/"), (context / source).read_bytes())
                case ["ENTRYPOINT", words]:
                    config["Entrypoint"] = json.loads(words)
                case _:
                    raise ValueError(f"{recipe}: {line}")
    _write(archive, name, layer.getvalue(), config, architecture)


def _write(archive: Path, name: str, layer: bytes, settings: Mapping[str, Any], architecture: str = "amd64") -> None:
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": architecture, "os": "linux", "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}, "history": [{}],
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _layer() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "run", "var"):
            _add(tar, name, kind=tarfile.DIRTYPE)
        _add(tar, "bin/busybox", Path(busybox).read_bytes())
        for name in set(applets) - {"busybox"}:
            _add(tar, f"bin/{name}", kind=tarfile.SYMTYPE, target="busybox")
        for name, data in FILES.items():
            _add(tar, name, data)
    return layer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes = b"", *, kind: bytes = b"0", target: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, 0o755, len(data), target
    tar.addfile(info, io.BytesIO(data))
