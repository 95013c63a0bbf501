"""A stand-in for Multus: a CNI plugin that calls other CNI plugins, one for each network that a pod asks for.

It needs no build, which takes minutes for Multus itself (netns-fixtures/multus).  This plugin does what Multus 4.3.0
(thin) does with the same configuration, according to its source.  docs/develop/testing.md lists its omissions, and the
real Multus versions that were tried by hand.  It imports the standard library only and no module of ours, so that it
can be a test's witness.

    main.py           the commands: environment and stdin to an answer
    selection.py      pure: a pod's annotation -> the networks that it asks for
    delegates.py      the networks of a pod, each with its plugins' configuration and arguments
    libcni.py         the work of libcni: a network's plugins in turn, and their stored results
    sources.py        the source of a network's configuration: a definition in the API server, or a file
    api.py            the API server, by a kubeconfig
    podresources.py   kubelet: the devices of a pod
    claims.py         the devices of a pod by claims
    status.py         the pod's network-status
    device_info.py    the files that describe a device
    routes.py         default-route
"""

from pathlib import Path

_PROGRAM = """\
#!/usr/bin/python3 -IS
import sys
sys.path.insert(0, {folder!r})
from cluster.multus.main import main
sys.exit(main())
"""


def install(folder: Path) -> Path:
    """Install the plugin ``multus`` into a folder of CNI plugins; return the program."""
    program = folder / "multus"
    program.write_text(_PROGRAM.format(folder=str(Path(__file__).resolve().parents[2])))
    program.chmod(0o755)
    return program
