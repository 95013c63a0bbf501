"""The entry of the one program; its name and environment decide what it is (docs/user/install.md).

As ``hpn-ipam`` it is the IPAM plugin; with CNI_COMMAND set it is the CNI plugin with that IPAM inside; otherwise it is
the operator's command.
"""

import gc
import os
import sys
from pathlib import Path
from typing import NoReturn

IPAM = "hpn-ipam"


def main() -> NoReturn:
    """Run as the plugin, a daemon or the operator's command."""
    # The launcher's name, not that of the unpacked program (packaging/launcher).
    sys.argv[0] = os.environ.pop("HPN_ARGV0", sys.argv[0])
    # An operator's command needs none of the plugin's imports, and neither plugin needs the other's.
    version = os.environ.pop("HPN_VERSION", "")
    file = os.environ.pop("HPN_FILE", "")
    if "CNI_COMMAND" not in os.environ:
        gc.enable()
        if sys.argv[1:] in (["help", "agent"], ["help", "node"]):
            sys.argv[1:] = [sys.argv[2], "--help"]
        if sys.argv[1:2] == ["daemonset"] and sys.argv[2:3] in (["agent"], ["node"]):
            from ctl.daemonset import containers  # noqa: PLC0415

            sys.argv[1:] = containers.command(sys.argv[2:])
        if sys.argv[1:2] == ["agent"]:
            from agent.main import main as agent  # noqa: PLC0415

            sys.exit(agent(sys.argv[2:], version))
        if sys.argv[1:2] == ["node"]:
            from ctl.main import VERSION  # noqa: PLC0415
            from node.main import main as node  # noqa: PLC0415

            sys.exit(node(sys.argv[2:], VERSION, file))
        import signal  # noqa: PLC0415

        from ctl.main import main as operator  # noqa: PLC0415

        # End silently if the reader of the output, such as head, ends.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        sys.exit(operator(sys.argv, file, version))
    # The frozen program does this before its first module (packaging/hpn.spec).
    gc.disable()
    try:
        plugin()
    except SystemExit as e:
        # Freeing all modules object by object takes a tenth of an ADD; the kernel frees them at once.
        os._exit(int(e.code or 0))


def plugin() -> NoReturn:
    """Answer the runtime."""
    from base.protocol.dispatch import serve  # noqa: PLC0415
    from ipam import main as ipam  # noqa: PLC0415

    if Path(sys.argv[0]).name == IPAM:
        serve(ipam.run)
    from cni.main import run  # noqa: PLC0415

    serve(lambda request: run(request, {IPAM: ipam.ask}))


if __name__ == "__main__":
    main()
