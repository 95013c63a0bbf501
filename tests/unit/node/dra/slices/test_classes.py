"""hpn node --classes: a DeviceClass for each resource, with names that the API server accepts."""

import json
import re
from pathlib import Path

import pytest
import yaml

from node import main
from node.dra.slices import classes
from node.model import Resource, Sharing


def resource(full_name: str) -> Resource:
    prefix, _, name = full_name.partition("/")
    return Resource(prefix, name, Sharing.EXCLUSIVE, ())


def names(*resources: str) -> list[str]:
    found = yaml.safe_load_all(classes.text([resource(one) for one in resources]))
    return [one["metadata"]["name"] for one in found]


def test_names() -> None:
    assert names("nvidia.com/rail0_vf", "nvidia.com/Rail.1") == ["rail0-vf.nvidia.com", "rail-1.nvidia.com"]
    alike = names("a.com/x_y", "a.com/x-y", "b.com/x-y")
    assert len(set(alike)) == 3
    assert alike[2] == "x-y.b.com"
    long = names(f"{'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 40}/{'n' * 63}")
    assert all(len(one) <= 253 and re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", one) for one in (*alike, *long))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "devices.yaml"
    entries = [{"name": "nvidia.com/rail0_vf", "kind": "vf", "by": "dra"}, {"name": "example_com/a", "kind": "vf"}]
    file.write_text(json.dumps({"resources": entries}))
    assert main.main(["--classes", f"{file}"], "1") == 0
    shown = capsys.readouterr()
    (one,) = yaml.safe_load_all(shown.out)
    assert one["spec"]["extendedResourceName"] == "nvidia.com/rail0_vf"
    (selector,) = one["spec"]["selectors"]
    assert selector["cel"]["expression"] == (
        'device.driver == "hpn-cni.io" && device.attributes["k8s.cni.cncf.io"].resourceName == "nvidia.com/rail0_vf"'
    )
    assert 'resources[1] "example_com/a": kubelet accepts a prefix only if' in shown.err
    file.write_text("{}")
    assert main.main(["--classes", f"{file}"], "1") == 2
    assert capsys.readouterr().out == ""
