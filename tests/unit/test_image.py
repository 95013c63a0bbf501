"""packaging/image: what its recipe makes."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "netns-fixtures"))

from cluster import image

RECIPE = ROOT / "packaging" / "image" / "Dockerfile"


def test_the_image_has_one_file(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "hpn").write_bytes(b"the program")
    image.build(RECIPE, tmp_path, "localhost/hpn:1", tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as saved:
        (manifest,) = json.loads(content(saved, "manifest.json"))
        config_of_it = json.loads(content(saved, manifest["Config"]))
        (layer,) = manifest["Layers"]
        with tarfile.open(fileobj=io.BytesIO(content(saved, layer))) as files:
            (one,) = files.getmembers()
            assert (one.name, one.mode, content(files, "hpn")) == ("hpn", 0o755, b"the program")
    assert manifest["RepoTags"] == ["localhost/hpn:1"]
    assert config_of_it["config"] == {"Entrypoint": ["/hpn"]}


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
