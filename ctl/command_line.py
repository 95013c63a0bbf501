"""What all commands have in common: options with an example, and one JSON document."""

import argparse
import json

from cni.protocol.spec import Json


def parser_for(command: str, about: str, example: str) -> argparse.ArgumentParser:
    """A parser that has no options yet.  The command's help ends with the example, as it is."""
    return argparse.ArgumentParser(
        prog=f"hpn {command}",
        description=about,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def as_document(body: Json) -> str:
    """What ``--json`` prints."""
    return json.dumps(body, indent=1) + "\n"
