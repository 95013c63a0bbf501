"""The origin of all carried files: packages, their licences, and an SBOM (CycloneDX 1.5).

dpkg, or the virtual environment's distributions, know a file's package.  A file of neither ends the build.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import target

ROOT = Path(__file__).parents[1]
LICENSES = "licenses.z"
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z]+-[0-9.]*[0-9])")
# Packages that the launcher is linked with.
_LAUNCHER = ("musl-dev", "libgcc-12-dev")
PACKAGES: dict[str, str] = {}  # the Debian package of each file, filled by ``look_up``


@dataclass
class Component:
    """A package or a distribution, and its carried files."""

    name: str
    version: str
    purl: str
    license: str
    files: set[str] = field(default_factory=set)


def components(files: Mapping[str, Path], modules: Iterable[Path]) -> list[Component]:
    """Return the components of the carried files, and of the modules inside one of them, by their sources."""
    found, modules = dict[str, Component](), list(modules)
    look_up([*files.values(), *modules])
    for name, source in files.items():
        one = owner(source)
        found.setdefault(one.purl, one).files.add(name)
    for source in modules:
        one = owner(source)
        found.setdefault(one.purl, one)
    for package in _LAUNCHER:
        one = debian(package)
        found.setdefault(one.purl, one)
    return sorted(found.values(), key=lambda c: c.purl)


def owner(source: Path) -> Component:
    """Return a file's component.  Ends the build if there is none."""
    real = source.resolve()
    if real.is_relative_to(ROOT):
        return ours()
    if distribution := distributions().get(real):
        return of_python(distribution)
    if package := next((PACKAGES[path] for path in target.spellings(target.inside(source)) if path in PACKAGES), None):
        return debian(package)
    sys.exit(f"{source} is carried, and belongs to no package and no distribution")


@cache
def ours() -> Component:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return Component("hpn-cni", version, f"pkg:generic/hpn-cni@{version}", (ROOT / "LICENSE").read_text())


@cache
def distributions() -> dict[Path, str]:
    """Return each file of the virtual environment, with the name of its distribution."""
    return {
        Path(str(one.locate_file(file))).resolve(): one.metadata["Name"]
        for one in importlib.metadata.distributions(path=target.SITES)
        for file in one.files or ()
    }


@cache
def of_python(name: str) -> Component:
    one = next(iter(importlib.metadata.distributions(name=name, path=target.SITES)))
    words = ("licen", "copying", "notice", "authors")
    own = [file for file in one.files or () if ".dist-info/" in str(file)]
    texts = [file.read_text() for file in own if any(word in file.name.lower() for word in words)]
    text = "\n".join(texts) or one.metadata.get("License-Expression") or one.metadata.get("License") or ""
    if not text:
        sys.exit(f"{name} {one.version} is carried and names no licence")
    return Component(name, one.version, f"pkg:pypi/{name.lower().replace('_', '-')}@{one.version}", text)


def look_up(sources: Iterable[Path]) -> None:
    """Fill PACKAGES, by one query for all files."""
    asked = [target.inside(source) for source in sources if source not in distributions()]
    command = ["dpkg", target.DPKG, "-S", *sorted({path for source in asked for path in target.spellings(source)})]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    for line in found.splitlines():
        packages, _, path = line.rpartition(": ")
        if not line.startswith("diversion"):
            PACKAGES[path] = packages.split(",")[0].split(":")[0]


@cache
def debian(package: str) -> Component:
    query = ["dpkg-query", target.DPKG, "-W", "-f", "${Version} ${Architecture}\n", package]
    version, machine = subprocess.check_output(query, text=True).splitlines()[0].split()  # noqa: S603
    release = platform.freedesktop_os_release()
    purl = f"pkg:deb/{release['ID']}/{package}@{version}?arch={machine}&distro={release['ID']}-{release['VERSION_ID']}"
    text = (target.ROOT / "usr/share/doc" / package / "copyright").read_text(errors="replace")
    return Component(package, version, purl, text)


def older_than_the_release(found: Iterable[Component]) -> list[str]:
    """Return this machine's packages that are older than the release's, which a build on another machine may carry."""
    if target.IS_OTHER:
        return []
    names = [one.name for one in found if one.purl.startswith("pkg:deb/")]
    policy = subprocess.run(["apt-cache", "policy", *names], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
    older, name, installed = list[str](), "", ""
    for line in policy.splitlines():
        word, _, rest = line.strip().partition(": ")
        if not line.startswith(" "):
            name = line.rstrip(":")
        elif word == "Installed":
            installed = rest
        elif word == "Candidate" and rest not in (installed, "(none)"):
            older.append(f"{name} {installed} (the release has {rest})")
    return older


def licenses(found: Iterable[Component]) -> str:
    """Return each licence text once, under the names of its components, and the common ones that Debian's texts
    reference."""
    names = dict[str, list[str]]()
    for one in found:
        names.setdefault(one.license.strip(), []).append(f"{one.name} {one.version}")
    for common in sorted({name for text in names for name in _COMMON.findall(text)}):
        names.setdefault(Path("/usr/share/common-licenses", common).read_text(), []).append(common)
    rule = "=" * 100
    return "\n".join(f"{rule}\n{', '.join(of)}\n{rule}\n\n{text}\n" for text, of in names.items())


def sbom(found: Iterable[Component], directory: Path, version: str) -> str:
    """Return the SBOM: each component with its files in the program's directory."""

    def file(name: str) -> dict[str, object]:
        digest = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        return {"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}

    made = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    program = {"type": "application", "bom-ref": "hpn", "name": "hpn", "version": version}
    listed = [
        {"type": "library", "bom-ref": one.purl, "name": one.name, "version": one.version, "purl": one.purl}
        | {"licenses": [{"license": {"name": f"see hpn version --licenses, {one.name}"}}]}
        | ({"components": [file(name) for name in sorted(one.files)]} if one.files else {})
        for one in found
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, version)}",
        "version": 1,
        "metadata": {"timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": program},
        "components": listed,
        "dependencies": [{"ref": "hpn", "dependsOn": [one["bom-ref"] for one in listed]}],
    }
    return json.dumps(document, indent=1) + "\n"


def carry_licenses(found: Iterable[Component], directory: Path, beside: Path) -> None:
    """Write the licences into the program's directory, compressed, and beside the binary as text."""
    text = licenses(found)
    beside.write_text(text)
    (directory / LICENSES).write_bytes(zlib.compress(text.encode(), 9))
