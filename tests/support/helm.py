"""The chart, its objects, the Helm that the tests build, and the values of docs/user/kubernetes.md."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from conftest import require
from support.pages import ROOT, shown

CHART = ROOT / "packaging" / "helm" / "hpn"
NAMESPACE = "kube-system"
# Helm leaves these, as `kubectl delete -k packaging/kubernetes` leaves the files of earlier rollouts.
KEPT = ("ConfigMap hpn-node", *(f"CustomResourceDefinition hpn{one}s.hpn-cni.io" for one in ("block", "pool")))
NAMESPACED = ("ServiceAccount", "DaemonSet", "ConfigMap", "CronJob")

Objects: TypeAlias = dict[str, dict[str, Any]]


def built(tier: str) -> Path:
    """The program; the first call builds it, for minutes.  Skips the test if that is impossible."""
    done = subprocess.run([ROOT / "netns-fixtures" / "helm"], capture_output=True, text=True, check=False)
    if done.returncode:
        require(tier, done.stderr.strip())
    return Path(done.stdout.strip())


def values() -> dict[str, Any]:
    """The page's values, with the image of the nodes."""
    found: dict[str, Any] = yaml.safe_load(shown(ROOT / "docs/user/kubernetes.md", "Quickstart", "yaml values.yaml"))
    assert found["image"] == {"repository": "registry.example.com/hpn"}
    return found | {"image": {"repository": "localhost/hpn", "tag": "1"}}


def write(tree: Path, **more: Any) -> None:
    """Write values.yaml, with other values on top."""
    (tree / "values.yaml").write_text(json.dumps(values() | more))


def by_name(text: str) -> Objects:
    """The objects by kind and name, without the digests at the end of ConfigMaps' names."""
    text = re.sub(r"\b(hpn-node|hpn-ipam-gc)-[0-9a-z]{10}\b", r"\1", text)
    listed = [one for each in yaml.safe_load_all(text) if each for one in each.get("items", [each])]
    return {f"{one['kind']} {one['metadata']['name']}": one for one in listed}


class Chart:
    """The chart, rendered without a cluster."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def run(self, *words: str, **values: Any) -> "subprocess.CompletedProcess[str]":
        argv = [self.program, "template", "hpn", CHART, f"--namespace={NAMESPACE}", "--values=-", *words]
        return subprocess.run(argv, input=json.dumps(values), capture_output=True, text=True, check=False)

    def objects(self, *words: str, **values: Any) -> Objects:
        done = self.run(*words, **values)
        assert done.returncode == 0, done.stderr
        return by_name(done.stdout)

    def like_kustomize(self, **values: Any) -> Objects:
        """The objects without what only Helm has: hooks, the annotation that keeps some, and its default namespace."""
        found = {name: one for name, one in self.objects(**values).items() if name.partition(" ")[2] != "hpn-uninstall"}
        for name, one in found.items():
            if name in KEPT:
                assert one["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
            if one["kind"] in NAMESPACED:
                one["metadata"].setdefault("namespace", NAMESPACE)
        return found
