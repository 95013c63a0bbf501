"""The chart, the Helm that the tests build, and the values of docs/user/quickstart.md."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml
from conftest import require
from support.pages import ROOT, shown

CHART = ROOT / "packaging" / "helm" / "hpn"


def built(tier: str) -> Path:
    """The program; the first call builds it, for minutes.  Skips the test if that is impossible."""
    done = subprocess.run([ROOT / "netns-fixtures" / "helm"], capture_output=True, text=True, check=False)
    if done.returncode:
        require(tier, done.stderr.strip())
    return Path(done.stdout.strip())


def values() -> dict[str, Any]:
    """The page's values, with the image of the nodes."""
    found: dict[str, Any] = yaml.safe_load(shown(ROOT / "docs/user/quickstart.md", "Two pods", "yaml values.yaml"))
    assert found["image"] == {"repository": "registry.example.com/hpn"}
    return found | {"image": {"repository": "localhost/hpn", "tag": "1"}}


def write(tree: Path, **more: Any) -> None:
    """Write values.yaml, with other values on top."""
    (tree / "values.yaml").write_text(json.dumps(values() | more))
