"""What the build does to make a start fast, by name, and which of it is left out (docs/develop/packaging.md).

HPN_WITHOUT names them, with commas between; "all" leaves out every one.  make binary sets it from WITHOUT and PLAIN.
"""

import os
import sys

# With each the module of startup/ that does it, if one does, in the order in which they have to be imported.
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
    """The tricks of this build.  Ends the build at a name that is none."""
    without = [word for word in os.environ.get("HPN_WITHOUT", "").split(",") if word]
    if unknown := sorted(set(without) - {"all", *TRICKS}):
        sys.exit(f"WITHOUT={','.join(unknown)}: no such trick; there are: {', '.join(TRICKS)}")
    return [name for name in TRICKS if not {"all", name} & set(without)]
