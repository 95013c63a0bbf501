"""hpn hints: the environment for a pod's program, from its attachments."""

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import if_nameindex
from typing import Final

from base.kernel import gids, netns
from base.protocol.errors import CheckFailed
from base.protocol.spec import Json
from cni.attachments import list_all
from ctl.command_line import add_state_dir, as_document, is_same_file, parser_for, state_dir, word
from ctl.hints import libraries
from ctl.hints.libraries import FORMS, Line, Seen, write

# Characters of a container id; fewer are ambiguous.
_SHORTEST: Final = 4
_EXAMPLES: Final = """examples:
  hpn hints default/train-0
  hpn hints train-0 --for ucx --form yaml
  hpn hints /run/netns/pod1 --nccl-version 2.21
  hpn hints train-0 --template --form yaml     for the template of train-0
"""


def answer(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    options = _parse(words)
    looked_in = state_dir(options)
    attachments = _of(options.what, list_all(looked_in)[0], looked_in)
    about = libraries.of(attachments, _look(attachments))
    lines = libraries.lines(options.library, about, options.nccl_version, template=options.template)
    if options.json:
        return as_document(_document(options.library, attachments, lines)), 0
    return write(lines, options.form), 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    about = "Print the environment for a program in the pod (docs/user/rdma.md)."
    parser = parser_for("hints", about, _EXAMPLES)
    parser.add_argument(
        "what", type=word, metavar="WHAT", help="a pod, namespace/pod, container id or its beginning, or a netns"
    )
    parser.add_argument("--for", dest="library", choices=libraries.LIBRARIES, default="nccl", help="default nccl")
    parser.add_argument("--nccl-version", type=_release, metavar="2.N", help="the version of NCCL; default: any")
    parser.add_argument("--form", choices=FORMS, default="env", help="shell, file of KEY=VALUE, or a container's YAML")
    parser.add_argument("--template", action="store_true", help="only values for all pods of its template; NCCL only")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    add_state_dir(parser)
    options = parser.parse_args(words)
    if options.template and options.library != "nccl":
        parser.error(f"--template is for NCCL only: {options.library} needs device names, which differ from pod to pod")
    return options


def _release(text: str) -> int:
    """26 for 2.26, 2.26.2 and 2.26.2-1."""
    found = re.fullmatch(r"v?2\.(\d{1,4})([.-].*)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version of NCCL 2, such as 2.26")
    return int(found[1])


def _of(what: str, attachments: Sequence[Json], state_dir: Path) -> list[Json]:
    """The attachments of the one pod that ``what`` names.  Raises CheckFailed for none, or more than one."""
    named = [a for a in attachments if _is_called(a, what)]
    alive = [a for a in named if a["alive"] and a["complete"]]
    if not alive:
        why = "its pod is gone, or its ADD is incomplete" if named else f"searched {state_dir}"
        raise CheckFailed(f"nothing is attached to {what!r} ({why}); list the attachments: hpn inspect")
    pods = {(a["containerID"], a["pod"]) for a in alive}
    if len(pods) > 1:
        some = ", ".join(sorted(f"{pod or '-'} ({container[:12]})" for container, pod in pods))
        raise CheckFailed(f"{what!r} matches several pods: {some}; give namespace/pod, or more of the container id")
    return alive


def _is_called(a: Json, what: str) -> bool:
    if "/" not in what:
        return what == a["pod"].rpartition("/")[2] or (len(what) >= _SHORTEST and a["containerID"].startswith(what))
    return what in (a["pod"], a["netns"]) or (what.startswith("/") and is_same_file(what, a["netns"]))


def _look(attachments: Sequence[Json]) -> Seen:
    """Facts from the pod's namespace; nothing if it is inaccessible or gone."""
    devices = [device for a in attachments for device in a["rdma"]["devices"]]
    try:
        fd = os.open(attachments[0]["netns"], os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return Seen()
    try:
        names = [name for _, name in netns.run_in(fd, if_nameindex)]
        with gids.mount_sysfs(fd) as root:
            return Seen(names, *read(Path(f"/proc/self/fd/{root}"), devices))
    except OSError:
        return Seen()
    finally:
        os.close(fd)


def read(sys: Path, devices: Iterable[str]) -> tuple[dict[str, list[int]], dict[str, int]]:
    """The port numbers of RDMA devices, and their traffic classes, which only the vendor's mlx5 driver shows."""
    ports, classes = dict[str, list[int]](), dict[str, int]()
    for device in devices:
        folder = sys / "class" / "infiniband" / device
        with suppress(OSError):
            ports[device] = sorted(int(port.name) for port in (folder / "ports").iterdir())
        with suppress(OSError):
            found = re.match(r"Global tclass=(\d+)", (folder / "tc/1/traffic_class").read_text(errors="replace"))
            classes |= {device: int(found[1])} if found else {}
    return ports, classes


def _document(library: str, attachments: Sequence[Json], lines: Sequence[Line]) -> Json:
    return {
        "for": library,
        "pod": attachments[0]["pod"],
        "containerID": attachments[0]["containerID"],
        "set": {line.name: line.value for line in lines if line.value is not None},
        "unset": [line.name for line in lines if line.name and line.value is None],
        "notes": [line.why for line in lines if line.value is None],
        "attachments": [{key: a[key] for key in ("network", "ifname", "addresses", "rdma")} for a in attachments],
    }
