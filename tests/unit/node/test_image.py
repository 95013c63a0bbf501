"""packaging/image and packaging/kubernetes: the recipe's result, and what can be checked without a cluster."""

import io
import json
import shlex
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.pages import ROOT

from node import config

sys.path.insert(0, str(ROOT / "netns-fixtures"))

from cluster import image

RECIPE = ROOT / "packaging" / "image" / "Dockerfile"
BASE = ROOT / "packaging" / "kubernetes"


# The lines of docs/develop/packaging.md, with the architecture and the program of each image.
IMAGES = {
    "registry.example.com/hpn:0.1.0": ("amd64", "dist/hpn"),
    "registry.example.com/hpn:0.1.0-amd64": ("amd64", "dist/hpn"),
    "registry.example.com/hpn:0.1.0-arm64": ("arm64", "dist/arm64/hpn"),
}


def lines(command: str) -> list[list[str]]:
    """The words behind the page's lines with this command."""
    page = (ROOT / "docs" / "develop" / "packaging.md").read_text()
    return [
        shlex.split(line)[len(command.split()) :] for line in page.splitlines() if line.startswith(f"    {command} ")
    ]


@pytest.mark.parametrize("words", lines("docker build"), ids=" ".join)
def test_the_image_has_one_file(tmp_path: Path, words: list[str]) -> None:
    for folder in ("dist", "dist/arm64"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hpn").write_text(f"{folder}/hpn")
    options = dict(zip(words[:-1:2], words[1:-1:2], strict=True))
    name = options.pop("--tag")
    architecture, program = IMAGES[name]
    assert (words[-1], ROOT / options.pop("--file")) == (".", RECIPE)
    arguments = dict([options.pop("--build-arg").split("=")]) if "--build-arg" in options else {}
    arguments |= {"architecture": options.pop("--platform").removeprefix("linux/")} if "--platform" in options else {}
    assert not options
    image.build(RECIPE, tmp_path, name, tmp_path / "image.tar", **arguments)
    with tarfile.open(tmp_path / "image.tar") as saved:
        (manifest,) = json.loads(content(saved, "manifest.json"))
        config_of_it = json.loads(content(saved, manifest["Config"]))
        (layer,) = manifest["Layers"]
        with tarfile.open(fileobj=io.BytesIO(content(saved, layer))) as files:
            (one,) = files.getmembers()
            assert (one.name, one.mode, content(files, "hpn")) == ("hpn", 0o755, program.encode())
    assert manifest["RepoTags"] == [name]
    assert config_of_it["config"] == {"Entrypoint": ["/hpn"]}
    assert config_of_it["architecture"] == architecture


def test_one_name_has_the_images_that_were_pushed() -> None:
    built = [words[words.index("--tag") + 1] for words in lines("docker build")]
    assert built == list(IMAGES) == [name for (name,) in lines("docker push")]
    assert lines("docker buildx imagetools create") == [["--tag", *IMAGES]]


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file
    return file.read()


def test_a_recipe_that_would_mean_more_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "Dockerfile"
    for line in ("FROM debian", "RUN true", "USER 1000"):
        recipe.write_text(f"FROM scratch\n{line}\n")
        with pytest.raises(ValueError, match=line):
            image.build(recipe, tmp_path, "localhost/hpn:1", tmp_path / "image.tar")


def objects() -> dict[str, Any]:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    return {name: yaml.safe_load((BASE / name).read_text()) for name in kustomization["resources"]}


def test_what_the_nodes_offer_is_taken() -> None:
    settings = config.read(BASE / "devices.yaml")
    assert ([one.full_name for one in settings.resources], settings.notes) == (["example.com/rail0"], ())


def test_its_pods_can_do_nothing_in_the_api_server() -> None:
    account, daemon = objects().values()
    pod = daemon["spec"]["template"]["spec"]
    assert (account["kind"], daemon["kind"]) == ("ServiceAccount", "DaemonSet")
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert not account["automountServiceAccountToken"]
    assert not pod["automountServiceAccountToken"]


def test_its_containers_have_the_rights_that_the_page_says() -> None:
    pod = objects()["daemonset.yaml"]["spec"]["template"]["spec"]
    assert "hostIPC" not in pod
    rights = {}
    for container in (*pod["initContainers"], *pod["containers"]):
        security = container["securityContext"]
        assert not security["allowPrivilegeEscalation"]
        assert "privileged" not in security
        assert security["capabilities"]["drop"] == ["ALL"]
        rights[container["name"]] = security["capabilities"].get("add", [])
    page = (ROOT / "docs" / "user" / "kubernetes.md").read_text()
    own = [volume["name"] for volume in pod["volumes"] if "emptyDir" in volume]
    for name, added in rights.items():
        rows = [line.split("|") for line in page.splitlines() if line.startswith(f"| `{name}` | ")]
        (cells,) = (cells for cells in rows if "auto" in cells[2])
        mounted = [m["mountPath"].removeprefix("/host") for c in (*pod["initContainers"], *pod["containers"])
                   if c["name"] == name for m in c["volumeMounts"] if m["name"] not in own]  # fmt: skip
        # A row for another way may name what all ways have.
        assert [path for path in mounted if not any(f"`{path}`" in cells[4] for cells in rows)] == []
        assert ", ".join(added or ["none"]) == cells[3].strip().strip("`")


def test_the_agent_may_do_what_its_unit_may() -> None:
    """And enter the host's mounts."""
    pod = objects()["daemonset.yaml"]["spec"]["template"]["spec"]
    (agent,) = (one for one in pod["containers"] if one["name"] == "agent")
    unit = (ROOT / "packaging" / "systemd" / "hpn-agent.service").read_text()
    (bound,) = (line for line in unit.splitlines() if line.startswith("CapabilityBoundingSet="))
    allowed = [one.removeprefix("CAP_") for one in bound.partition("=")[2].split()]
    assert sorted(agent["securityContext"]["capabilities"]["add"]) == sorted([*allowed, "SYS_CHROOT"])
