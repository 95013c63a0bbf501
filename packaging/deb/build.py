"""Pack the binary as a Debian package, and print its path.

    build.py BINARY DIRECTORY

Two runs with one SOURCE_DATE_EPOCH write the same file.  packaging/pack.py writes the licences beside the binary.  The
man page has the text of `hpn help`.
"""

import gzip
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

OWN = Path(__file__).parent
ROOT = OWN.parents[1]
sys.path.insert(0, str(ROOT))

from base.state.durable import SCHEMA  # noqa: E402
from ctl.main import HELP  # noqa: E402
from ipam.stores.files.lines import SCHEMA as LEASES  # noqa: E402

# The machine number at bytes 18 and 19 of an ELF file (man 5 elf), and Debian's name of that architecture.
ARCHITECTURES = {62: "amd64", 183: "arm64"}
PROGRAM = "usr/lib/cni/hpn"
# Debian's runtimes search plugins in the first directory, all others in the second, and people's shells the third.
LINKS = {
    "usr/lib/cni/hpn-ipam": "hpn",
    "opt/cni/bin/hpn": "/usr/lib/cni/hpn",
    "opt/cni/bin/hpn-ipam": "/usr/lib/cni/hpn",
    "usr/sbin/hpn": "../lib/cni/hpn",
}
UNITS = "usr/lib/systemd/system"
COMPLETIONS = {
    "hpn.bash": "usr/share/bash-completion/completions/hpn",
    "_hpn": "usr/share/zsh/vendor-completions/_hpn",
}
DOC = "usr/share/doc/hpn-cni"
MAN = "usr/share/man/man8"
OVERRIDES = "usr/share/lintian/overrides/hpn-cni"
SCRIPTS = ("preinst", "postinst", "prerm", "postrm")
_COMMAND = re.compile(r"^  (hpn \w+) +(.+(?:\n {8,}.+)*)", re.MULTILINE)
_RULE = "=" * 100


def architecture(binary: Path) -> str:
    """Return Debian's name of the binary's architecture.  Ends the build if it is unknown."""
    with binary.open("rb") as file:
        head = file.read(20)
    number = int.from_bytes(head[18:20], "little")
    if head[:6] != b"\x7fELF\x02\x01" or number not in ARCHITECTURES:
        sys.exit(f"{binary} is not a program for {' or '.join(ARCHITECTURES.values())}; build it with: make binary")
    return ARCHITECTURES[number]


def version() -> str:
    """Return the project's version."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def date() -> datetime:
    """Return the time of SOURCE_DATE_EPOCH."""
    return datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)


def filled(template: str, **values: str) -> str:
    """Return the template with the values in place of their names."""
    text = (OWN / template).read_text()
    for name, value in values.items():
        text = text.replace(f"@{name.upper()}@", value)
    return text


def man_page() -> str:
    """Return hpn(8), with each command as `hpn help` describes it."""

    def escaped(text: str) -> str:
        return text.replace("\\", r"\e").replace("-", r"\-")

    found = [(name, " ".join(about.split())) for name, about in _COMMAND.findall(HELP)]
    commands = "\n".join(f".TP\n.B {escaped(name)}\n\\&{escaped(about)}" for name, about in found)
    return filled("hpn.8", commands=commands, version=version(), date=date().strftime("%Y-%m-%d"))


def copyright_text(licenses: str) -> str:
    """Return the licences of all carried files, without those that every Debian machine has."""
    parts = licenses.split(f"{_RULE}\n")[1:]
    blocks = dict(zip(parts[::2], parts[1::2], strict=True))
    common = [names for names in blocks if Path("/usr/share/common-licenses", names.strip()).exists()]
    common += [names for names in blocks if re.match(r"hpn-cni \S+\n", names)]  # our own is the first of them
    rest = "".join(f"{_RULE}\n{names}{_RULE}\n{text}" for names, text in blocks.items() if names not in common)
    names = ", ".join(name.strip() for name in common[:-1])
    return filled("copyright", common=names) + rest


def changelog() -> str:
    """Return the changelog that Debian's tools require; the changes are in CHANGELOG.md."""
    head = f"hpn-cni ({version()}) unstable; urgency=medium\n\n  * The changes are in CHANGELOG.md.\n"
    return f"{head}\n -- hpn-cni maintainers <maintainers@hpn-cni.invalid>  {format_datetime(date())}\n"


def write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write a file of the package, with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)


def lay_out(tree: Path, binary: Path) -> None:
    """Write the package's files, laid out as on a node."""
    write(tree / PROGRAM, binary.read_bytes(), 0o755)
    for name, target in LINKS.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(target)
    for unit in sorted((ROOT / "packaging" / "systemd").iterdir()):
        write(tree / UNITS / unit.name, unit.read_bytes())
    for name, path in COMPLETIONS.items():
        write(tree / path, (ROOT / "packaging" / "completion" / name).read_bytes())
    write(tree / OVERRIDES, (OWN / "lintian-overrides").read_bytes())
    write(tree / MAN / "hpn.8.gz", gzip.compress(man_page().encode(), 9, mtime=0))
    (tree / MAN / "hpn-ipam.8.gz").symlink_to("hpn.8.gz")
    write(tree / DOC / "copyright", copyright_text(binary.with_name(f"{binary.name}.licenses.txt").read_text()))
    write(tree / DOC / "changelog.gz", gzip.compress(changelog().encode(), 9, mtime=0))
    # The pages keep their places relative to each other and to the examples, for their links.
    pages = [*ROOT.glob("*.md"), *(ROOT / "conf").iterdir(), *(ROOT / "docs").rglob("*.*")]
    for page in sorted(page for page in pages if page.suffix != ".py" and page.is_file()):
        write(tree / DOC / page.relative_to(ROOT), page.read_bytes())


def describe(tree: Path) -> None:
    """Write the files for dpkg: control file, checksums, scripts."""
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(tree)}\n" for path in files)  # noqa: S324
    size = sum(-(-path.stat().st_size // 1024) for path in files) + sum(not path.is_file() for path in tree.rglob("*"))
    machine = architecture(tree / PROGRAM)
    write(tree / "DEBIAN" / "control", filled("control", version=version(), architecture=machine, size=str(size)))
    write(tree / "DEBIAN" / "md5sums", sums)
    for script in SCRIPTS:
        text = filled(script, version=version(), schema=str(SCHEMA), leases=str(LEASES))
        write(tree / "DEBIAN" / script, text, 0o755)


def main() -> None:
    binary, directory = map(Path, sys.argv[1:])
    package = directory / f"hpn-cni_{version()}_{architecture(binary)}.deb"
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch, "tree")
        tree.mkdir()
        lay_out(tree, binary)
        describe(tree)
        for path in [tree, *tree.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)  # despite the umask
        command = ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(package)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    sys.stdout.write(f"{package}\n")


if __name__ == "__main__":
    main()
