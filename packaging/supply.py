"""What the program carries of others: whose each file is, its licence, and an SBOM (CycloneDX 1.5) of it.

Whose it is says the machine that it was taken from: dpkg, or the virtual environment's distributions.  A file that is
nobody's ends the build.
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

ROOT = Path(__file__).parents[1]
LICENSES = "licenses.z"
_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z]+-[0-9.]*[0-9])")
# What the launcher is linked with.
_LAUNCHER = ("musl-dev", "libgcc-12-dev")


@dataclass
class Component:
    """A package or a distribution, and which carried files are its own."""

    name: str
    version: str
    purl: str
    license: str
    files: set[str] = field(default_factory=set)


def components(files: Mapping[str, Path], modules: Iterable[Path]) -> list[Component]:
    """Of carried files, by where each was taken from, and of modules that are carried inside one of them."""
    found = dict[str, Component]()
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
    """Whose file it is."""
    real = source.resolve()
    if real.is_relative_to(ROOT):
        return ours()
    if distribution := distributions().get(real):
        return of_python(distribution)
    for path in (source, real, Path("/usr") / real.relative_to("/"), Path("/") / real.relative_to("/usr")):
        if package := package_of(path):
            return debian(package)
    sys.exit(f"{source} is carried, and belongs to no package and no distribution")


@cache
def ours() -> Component:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return Component("hpn-cni", version, f"pkg:generic/hpn-cni@{version}", (ROOT / "LICENSE").read_text())


@cache
def distributions() -> dict[Path, str]:
    """The name of each file's distribution."""
    return {
        Path(str(one.locate_file(file))).resolve(): one.metadata["Name"]
        for one in importlib.metadata.distributions()
        for file in one.files or ()
    }


@cache
def of_python(name: str) -> Component:
    one = importlib.metadata.distribution(name)
    words = ("licen", "copying", "notice", "authors")
    own = [file for file in one.files or () if ".dist-info/" in str(file)]
    texts = [file.read_text() for file in own if any(word in file.name.lower() for word in words)]
    text = "\n".join(texts) or one.metadata.get("License-Expression") or one.metadata.get("License") or ""
    if not text:
        sys.exit(f"{name} {one.version} is carried and says no licence")
    return Component(name, one.version, f"pkg:pypi/{name.lower().replace('_', '-')}@{one.version}", text)


@cache
def package_of(path: Path) -> str:
    found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
    return next((line.split(":")[0] for line in found.splitlines() if not line.startswith("diversion")), "")


@cache
def debian(package: str) -> Component:
    query = ["dpkg-query", "-W", "-f", "${Version} ${Architecture}\n", package]
    version, machine = subprocess.check_output(query, text=True).splitlines()[0].split()  # noqa: S603
    release = platform.freedesktop_os_release()
    purl = f"pkg:deb/{release['ID']}/{package}@{version}?arch={machine}&distro={release['ID']}-{release['VERSION_ID']}"
    text = Path("/usr/share/doc", package, "copyright").read_text(errors="replace")
    return Component(package, version, purl, text)


def older_than_the_release(found: Iterable[Component]) -> list[str]:
    """Debian packages of which the release has a newer one: another machine's build may carry that."""
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
    """Every text once, under the names of all that it is of; and those that Debian's only name."""
    names = dict[str, list[str]]()
    for one in found:
        names.setdefault(one.license.strip(), []).append(f"{one.name} {one.version}")
    for common in sorted({name for text in names for name in _COMMON.findall(text)}):
        names.setdefault(Path("/usr/share/common-licenses", common).read_text(), []).append(common)
    rule = "=" * 100
    return "\n".join(f"{rule}\n{', '.join(of)}\n{rule}\n\n{text}\n" for text, of in names.items())


def sbom(found: Iterable[Component], directory: Path, version: str) -> str:
    """Each component with the files it has in the program's directory."""

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
    """Into the program's directory, compressed, and beside the binary as they are."""
    text = licenses(found)
    beside.write_text(text)
    (directory / LICENSES).write_bytes(zlib.compress(text.encode(), 9))
