"""The tables of keys in docs/ match the models, and list every key."""

import marshal
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.pages import ROOT

from cni import kinds, models
from docs import keys
from ipam import models as ipam_models
from node.config import old, own, shared, sriov

REFERENCE = (ROOT / "docs" / "user" / "reference.md").read_text()
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_the_models(page: Path) -> None:
    text = page.read_text()
    assert keys.filled_in(text) == text, "run: make docs"


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_kind_has_its_section(kind: str) -> None:
    model = kinds.model(kind)
    section = REFERENCE.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    marker = f"<!-- keys: {model.__module__}.{model.__name__} without Common -->\n<!-- end -->"
    assert marker.partition("\n")[0] in section, f"docs/user/reference.md has no section ## {kind} with {marker!r}"


def test_no_object_is_missing() -> None:
    shown = {f"{module}.{name}" for page in PAGES for _, module, name, *_ in keys.TABLE.findall(page.read_text())}
    ours: list[type[BaseModel]] = [models.Common, models.Rdma, models.PolicyRouting]
    ours += [ipam_models.IpamKeys, ipam_models.RangeKeys, ipam_models.RailKeys, ipam_models.RouteKeys]
    ours += [ipam_models.ClusterKeys]
    ours += [own.File, own.Entry, own.Selectors, own.Health, old.File, shared.File, shared.Entry, shared.Selectors]
    ours += [sriov.File, sriov.Entry, sriov.NetDevice, sriov.AuxNetDevice, sriov.Accelerator]
    assert {f"{model.__module__}.{model.__name__}" for model in ours} <= shown


def test_probe_says_its_times() -> None:
    """The page gives the times of probe, which are constants that the model does not show."""
    row = next(line for line in REFERENCE.splitlines() if line.startswith("| `probe` |"))
    assert f"{ipam_models.PROBE_LEAST:g} to {ipam_models.PROBE_MOST:g}" in row
    assert f"`true` is {ipam_models.PROBE:g}" in row


class Example(BaseModel):
    some: Annotated[int, Field(ge=1, lt=9)] = 2
    """What it
    means.
    Refused: 7: odd"""
    word: Literal["a", "b"]
    """A word."""
    path: str | None = None
    """A path.
    Value: absolute path
    Default: nowhere"""


class Bare(BaseModel):
    key: int = 1


class Contradicting(BaseModel):
    key: bool = True
    """On.
    Default: `false`"""


def test_a_table() -> None:
    assert keys.table(Example, "path").splitlines()[2:] == [
        "| `some` | 1 to 8 | `2` | What it means | 7: odd |",
        "| `word` | `a`, `b` | required | A word |  |",
    ]
    assert keys.table(Example).splitlines()[-1] == "| `path` | absolute path | nowhere | A path |  |"


@pytest.mark.parametrize(("model", "why"), [(Bare, "key has no description"), (Contradicting, "the model says `true`")])
def test_refused(model: type[BaseModel], why: str) -> None:
    (key, field), *_ = model.model_fields.items()
    with pytest.raises(keys.Undescribed, match=why):
        keys.row(key, field, keys.described(model).get(key, ""))


@pytest.mark.parametrize("model", [models.Common, ipam_models.IpamKeys, *map(kinds.model, kinds.KINDS)])
def test_descriptions_cost_a_start_nothing(model: type[BaseModel]) -> None:
    source = Path(ROOT, *model.__module__.split(".")).with_suffix(".py")
    source = source if source.exists() else source.with_suffix("") / "__init__.py"
    compiled = marshal.dumps(compile(source.read_text(), str(source), "exec"))
    texts: dict[str, Any] = keys.described(model)
    assert texts
    for text in texts.values():
        assert re.split(r"[\n.]", text)[0].encode() not in compiled
