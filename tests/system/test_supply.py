"""Third-party contents of the binary: every file has an owner, a digest and a licence."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from system.machine import Tools


@pytest.fixture
def components(tools: Tools) -> list[dict[str, Any]]:
    document = json.loads(Path(f"{tools.binary}.cdx.json").read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    return document["components"]


def hpn(tools: Tools, base: Path, *words: str) -> str:
    env = {"HPN_AGENT": "", "HPN_PROGRAM_DIR": str(base)}
    return subprocess.run([tools.hpn, *words], env=env, capture_output=True, text=True, check=True).stdout


def test_every_carried_file_is_somebodys(tools: Tools, components: list[dict[str, Any]], tmp_path: Path) -> None:
    hpn(tools, tmp_path, "version")
    (directory,) = (path for path in tmp_path.iterdir() if path.is_dir())
    carried = {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".stamp"
    }
    listed = {file["name"]: file["hashes"][0]["content"] for one in components for file in one.get("components", [])}
    assert listed == carried


def test_every_component_has_a_licence(tools: Tools, components: list[dict[str, Any]], tmp_path: Path) -> None:
    text = hpn(tools, tmp_path, "version", "--licenses")
    assert text == Path(f"{tools.binary}.licenses.txt").read_text()
    for one in components:
        assert f"{one['name']} {one['version']}" in text
        assert one["purl"].startswith(("pkg:deb/", "pkg:pypi/", "pkg:generic/hpn-cni@"))
    names = {one["name"] for one in components}
    assert names >= {"hpn-cni", "libc6", "musl-dev", "python3.11-minimal", "pydantic", "pydantic_core", "pyroute2"}
    assert "GNU LESSER GENERAL PUBLIC LICENSE" in text


def test_what_differs_between_machines_is_not_carried(components: list[dict[str, Any]]) -> None:
    assert not {"liblzma5", "libbz2-1.0"} & {one["name"] for one in components}
