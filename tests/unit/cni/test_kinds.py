"""The table of kinds: every row's module is complete, and a start imports only one."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from cni import kinds
from cni.kinds import device
from ctl.main import HELP

FUNCTIONS = {name: one for name, one in vars(kinds.Kind).items() if inspect.isfunction(one) and name[0] != "_"}

START = """
import sys
from cni import config
attach = config.load({"cniVersion": "1.1.0", "name": "n", "type": "hpn", **KEYS}, "").attach
print(attach.kind, *sorted(name for name in sys.modules if name.startswith("cni.models.")))
"""


def test_there_is_something_to_look_at() -> None:
    assert {"plan", "attach", "detach", "check", "status", "describe"} <= FUNCTIONS.keys()


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_its_module_has_what_commands_ask_of_a_kind(kind: str) -> None:
    module = kinds.named(kind)
    for name, asked in FUNCTIONS.items():
        given = inspect.signature(getattr(module, name)).parameters
        _, *wanted = inspect.signature(asked).parameters
        assert len(given) == len(wanted), name


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_its_model_is_of_that_kind(kind: str) -> None:
    assert get_args(kinds.model(kind).model_fields["kind"].annotation) == (kind,)


@pytest.mark.parametrize(
    ("keys", "imported"),
    [
        ({"master": "eth1"}, "macvlan cni.models.child cni.models.macvlan"),
        ({"deviceID": "0000:3b:00.2"}, "sriov cni.models.device cni.models.sriov"),
        ({"kind": "host-device", "device": "eth1"}, "host-device cni.models.device cni.models.host_device"),
    ],
)
def test_a_start_imports_the_model_in_use(keys: dict[str, str], imported: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START.replace("KEYS", repr(keys))],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == imported


def test_help_names_every_kind() -> None:
    """The help has the names as text, so it imports no kind."""
    (line,) = (line for line in HELP.splitlines() if '"kind"' in line)
    assert set(kinds.KINDS) <= set(re.findall(r"[\w-]+", line))


@pytest.mark.parametrize(
    ("name", "instead"),
    [("rail0", "was-rail0"), ("a" * 15, "was-" + "a" * 11), ("ü" * 7, "was-" + "ü" * 5)],
)
def test_the_name_of_a_device_whose_name_is_taken(name: str, instead: str) -> None:
    """At most 15 bytes, and no half of a character."""
    assert device.instead_of(name) == instead
