"""A stand-in for Multus: a CNI plugin that calls other CNI plugins, one for each network that a pod asks for.

Multus itself cannot be built from the Go module registry.  This does what Multus 4.3.0 (thin) does with the same
configuration, as read in its source.  ``docs/develop/cluster.md`` says what it leaves out, and which real Multus
versions were tried by hand.  It imports the standard library only: nothing of ours, so that it can be a test's witness.

    main.py           the commands: environment and stdin to an answer
    selection.py      pure: a pod's annotation -> the networks that it asks for
    delegates.py      the networks of a pod, each with the configuration and the arguments that its plugins get
    libcni.py         what libcni does: a network's plugins in turn, and the results it keeps
    sources.py        where a network's configuration comes from: a definition in the API server, or a file
    api.py            the API server, by a kubeconfig
    podresources.py   kubelet: which devices a pod has
    status.py         what the pod's network-status says
    device_info.py    the files that say what a device is
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
    """Put the plugin ``multus`` into a folder of CNI plugins; the program."""
    program = folder / "multus"
    program.write_text(_PROGRAM.format(folder=str(Path(__file__).resolve().parents[2])))
    program.chmod(0o755)
    return program
