"""hpn fabric: the fabric between the nodes."""

import argparse
from collections.abc import Sequence

from ctl.command_line import parser_for
from ctl.fabric.wiring import command as wiring


def answer(words: Sequence[str]) -> tuple[str, int]:
    """The command's output and exit status."""
    return wiring.answer(parser().parse_args(words))


def parser() -> argparse.ArgumentParser:
    """The options of all subcommands."""
    example = "example: hpn fabric wiring --kubeconfig ~/.kube/config"
    whole = parser_for("fabric", "Check the fabric between the nodes.", example, fails="something is wrong")
    wiring.add(whole.add_subparsers(dest="command", required=True))
    return whole
