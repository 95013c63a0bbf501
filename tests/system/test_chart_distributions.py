"""packaging/helm/hpn/distributions: what each file changes in the rendered objects, and its row on the page."""

import re
from typing import Any

import pytest
import yaml
from support.helm import CHART, Chart
from support.pages import ROOT

PAGE = (ROOT / "docs" / "user" / "kubernetes.md").read_text()
FOLDER = CHART / "distributions"
NETWORK = {"name": "a", "config": {"plugins": [{"type": "hpn"}]}}
MICROK8S = "/var/snap/microk8s"
# By file: the hostPath of volumes that differ from the default, and the members of the pod's specification that do.
EXPECTED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "bottlerocket": (
        {},
        {"seLinuxOptions": {"user": "system_u", "role": "system_r", "type": "super_t", "level": "s0"}},
    ),
    "k0s": ({"registry": "/var/lib/k0s/kubelet/plugins_registry"}, {}),
    "k3s": ({"plugins": "/var/lib/rancher/k3s/data/cni"}, {}),
    "microk8s": (
        {
            "registry": f"{MICROK8S}/common/var/lib/kubelet/plugins_registry",
            "plugins": f"{MICROK8S}/current/opt/cni/bin",
        },
        {},
    ),
    "openshift": ({"plugins": "/var/lib/cni/bin"}, {}),
    "selinux": ({}, {"seLinuxOptions": {"type": "spc_t"}}),
    "talos": ({"cdi": "/var/cdi/dynamic"}, {}),
    "virtual-nodes": ({}, {"affinity": {"type": ["virtual-kubelet"], "eks.amazonaws.com/compute-type": ["fargate"]}}),
}


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return found


def paths(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_file_changes(chart: Chart, name: str) -> None:
    given = values(name)
    more, less = (chart.objects(networks=[NETWORK], **one) for one in (given, {"mode": given.get("mode", "auto")}))
    pod, usual = (one["DaemonSet hpn"]["spec"]["template"]["spec"] for one in (more, less))
    there, members = EXPECTED[name]
    assert {key: path for key, path in paths(pod).items() if path != paths(usual)[key]} == there
    # Each container still finds it at the usual path, except kubelet's, which hpn node is told.
    mounts = {one["name"]: one["mountPath"] for each in pod["containers"] for one in each["volumeMounts"]}
    assert mounts["cdi"] == "/var/run/cdi"
    label = pod["securityContext"].get("seLinuxOptions")
    assert label == members.get("seLinuxOptions")
    assert more["Pod hpn-test-a-1"]["spec"].get("securityContext", {}).get("seLinuxOptions") == label
    if "affinity" in members:
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert {one["key"]: one["values"] for one in term["matchExpressions"]} == members["affinity"]
        assert {one["operator"] for one in term["matchExpressions"]} == {"NotIn"}
    else:
        assert "affinity" not in pod


def test_the_constraints_of_openshift(chart: Chart) -> None:
    """The pods of the DaemonSet and of helm test use them by their account."""
    found = chart.objects("--namespace=hpn", networks=[NETWORK], **values("openshift"))
    binding = found["RoleBinding hpn-scc"]
    assert (binding["metadata"]["namespace"], binding["roleRef"]["name"]) == ("hpn", "system:openshift:scc:privileged")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "hpn", "namespace": "hpn"}]
    pods = found["Pod hpn-test-a-1"]["spec"], found["DaemonSet hpn"]["spec"]["template"]["spec"]
    assert [(one["serviceAccountName"], one["automountServiceAccountToken"]) for one in pods] == [("hpn", False)] * 2
    assert "RoleBinding hpn-scc" not in chart.objects()


def test_another_directory_for_units(chart: Chart) -> None:
    done = chart.run(cdiDir="/var/cdi/dynamic")
    said = "cdiDir: units of systemd write to /var/run/cdi; set mode: container"
    assert (done.returncode, said in done.stderr) == (1, True)


def test_tainted_nodes_of_another_architecture(chart: Chart) -> None:
    """No value is needed: every taint is tolerated, and no architecture selected."""
    pod = chart.objects()["DaemonSet hpn"]["spec"]["template"]["spec"]
    assert (pod["tolerations"], pod["nodeSelector"]) == ([{"operator": "Exists"}], {"kubernetes.io/os": "linux"})


def test_the_page_has_them_all() -> None:
    table = PAGE.partition("\n### Distributions\n")[2].partition("\n#")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    rows = [[nodes, files, how.partition(",")[0], remarks] for nodes, files, how, remarks in rows]
    named = {name: how for _, files, how, _ in rows for name in re.findall(r"`([\w-]+)\.yaml`", files)}
    assert named.keys() == EXPECTED.keys() == {one.stem for one in FOLDER.iterdir()}
    assert {how for _, _, how, _ in rows} == {"run", "imitated", "rendered"}
    # These give the paths to their nodes.
    files = (ROOT / "tests" / "cluster" / f"test_chart{end}.py" for end in ("", "_distributions"))
    cluster = "".join(file.read_text() for file in files)
    assert {name for name, how in named.items() if how == "imitated"} == {
        name for name in named if f'"{name}"' in cluster
    }
