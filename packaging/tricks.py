"""The build's tricks for a fast start, by name (docs/develop/packaging.md).

HPN_WITHOUT lists the tricks to leave out, separated by commas; "all" means every one.  make binary sets it from WITHOUT
and PLAIN.
"""

import os
import sys

# Each with its module in startup/, if it has one, in the order in which they must be imported.
TRICKS = {
    "archive": "",
    "docstrings": "",
    "hashlib": "",
    "re": "precompiled_re",
    "inspect": "no_inspect",
    "dataclasses": "precompiled_dataclasses",
    "typing": "precompiled_typing",
    "metadata": "no_plugins",
}


def chosen() -> list[str]:
    """Return the tricks of this build.  Ends the build at an unknown name."""
    without = [word for word in os.environ.get("HPN_WITHOUT", "").split(",") if word]
    if unknown := sorted(set(without) - {"all", *TRICKS}):
        sys.exit(f"WITHOUT={','.join(unknown)}: no such trick; there are: {', '.join(TRICKS)}")
    return [name for name in TRICKS if not {"all", name} & set(without)]
