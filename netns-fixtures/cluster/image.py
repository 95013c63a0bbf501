"""The one image of the cluster, for pods and for their sandboxes: busybox alone."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

NAME = "localhost/busybox:1"
FILES = {"etc/passwd": b"root:x:0:0:root:/:/bin/sh\n", "etc/group": b"root:x:0:\n"}
# A sandbox runs this for as long as its pod is there.
COMMAND = ["/bin/sh", "-c", "trap exit TERM INT; sleep 2147483647 & wait"]


def write(archive: Path) -> None:
    """Write the archive, in the form of `docker save`."""
    layer = _layer()
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/bin"], "Cmd": COMMAND, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}, "history": [{}],
    }  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
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
