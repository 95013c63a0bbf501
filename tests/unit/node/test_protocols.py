"""The generated modules agree with protoc's output for the .proto files, and the plugin serves every method."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from base.kubelet import deviceplugin_pb2, dra_pb2, drahealth_pb2, pluginregistration_pb2
from node.dra.claims.driver import Driver
from node.kubelet.plugin import Plugin

ROOT = Path(__file__).parents[3]
PROTOCOLS = sorted((ROOT / "base/kubelet").glob("*.proto"))
# The version of protoc.
VERSION = re.compile(r"# Protobuf Python Version: .*\n|PUBLIC,\n *\d+,\n *\d+,\n *\d+,\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={folder}", f"--pyi_out={folder}"]
        + [str(path.relative_to(ROOT)) for path in PROTOCOLS],
        check=True,
        cwd=ROOT,
    )
    return folder / "base/kubelet"


@pytest.mark.parametrize("suffix", ["py", "pyi"])
@pytest.mark.parametrize("name", [path.stem for path in PROTOCOLS])
def test_generated(made: Path, name: str, suffix: str) -> None:
    one, other = ((folder / f"{name}_pb2.{suffix}").read_text() for folder in (made, ROOT / "base/kubelet"))
    assert VERSION.sub("", one) == VERSION.sub("", other), "run: make protocols"


def test_every_method_of_the_dra_driver_is_served() -> None:
    """The older versions of both services have the same methods."""
    served = Driver.__new__(Driver)._methods().keys()
    of_driver = {
        f"/{package}.{service.name}/{method.name}"
        for service, packages in (
            (dra_pb2.DESCRIPTOR.services_by_name["DRAPlugin"], ("v1", "v1beta1")),
            (drahealth_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"], ("v1", "v1alpha1")),
        )
        for package in (service.full_name.rpartition(".")[0].removesuffix("v1") + version for version in packages)
        for method in service.methods
    }
    registry = pluginregistration_pb2.DESCRIPTOR.services_by_name["Registration"]
    assert served == of_driver | {f"/{registry.full_name}/{method.name}" for method in registry.methods}


def test_every_method_is_served() -> None:
    served = Plugin.__new__(Plugin)._methods().keys()
    services = (
        deviceplugin_pb2.DESCRIPTOR.services_by_name["DevicePlugin"],
        pluginregistration_pb2.DESCRIPTOR.services_by_name["Registration"],
    )
    assert served == {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
