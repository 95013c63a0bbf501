"""packaging/helm: which values the chart refuses, which of them replace pods, and which add rights."""

import json
import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
import yaml
from support.helm import CHART, Chart
from support.pages import ROOT

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
A = {"name": "a", "nodeSelector": {"p": "a", "q": "x"}}
TOKEN = "the ServiceAccount's token"
RAIL = {"plugins": [{"type": "hpn", "master": "rail0"}]}
PAGE = (ROOT / "docs" / "user" / "kubernetes.md").read_text()
# With all that has no part in the pods, so that each change below has an effect.
OTHERS = {
    "mode": "container",
    "metrics": {"address": "127.0.0.1:9617", "podMonitor": {"enabled": True}, "dashboard": {"enabled": True}},
    "label": {"enabled": True},
    "clusterAddresses": {"gc": {"enabled": True}},
}
CHANGED = {
    "image.repository": "localhost/hpn", "image.tag": "2", "image.digest": f"sha256:{'0' * 64}",
    "image.pullPolicy": "Always", "imagePullSecrets": [{"name": "s"}], "devices": "resources: []", "mode": "auto",
    "provision": True, "pools": [A], "networks": [{"name": "rail0", "config": RAIL}],
    "metrics.address": "127.0.0.1:9618", "metrics.podMonitor.enabled": False, "metrics.podMonitor.labels": {"a": "b"},
    "metrics.dashboard.enabled": False, "metrics.dashboard.labels": {"a": "b"}, "label.enabled": False,
    "label.name": "a.b/c", "label.values": {"fast": {}}, "clusterAddresses.enabled": True,
    "clusterAddresses.token": True, "clusterAddresses.gc.enabled": False,
    "clusterAddresses.gc.schedule": "0 * * * *", "claims.enabled": True, "nodeLabels.enabled": True,
    "cniBinDir": "/plugins", "kubeletDir": "/kubelet", "cdiDir": "/var/cdi/dynamic",
    "seLinuxOptions": {"type": "spc_t"}, "scc": "privileged", "env": {"A": "1"}, "nodeSelector": {"a": "b"},
    "tolerations": [], "affinity": {"nodeAffinity": {}},
    "resources": {"limits": {"cpu": 1}}, "maxUnavailable": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"nodeselector": {}}, "nodeselector"),
        ({"metrics": {"adress": "127.0.0.1:9617"}}, "adress"),
        ({"metrics": {"address": "0.0.0.0:9617"}}, "/metrics/address"),
        ({"metrics": {"address": "127.0.0.1:99999"}}, "/metrics/address"),
        ({"metrics": {"address": "[::1]:0"}}, "/metrics/address"),
        ({"metrics": {"podMonitor": {"enabled": True}}}, "/metrics/address"),
        ({"metrics": {"podMonitor": {"enabled": True}, "address": "unix:/run/hpn/metrics.sock"}}, "/metrics/address"),
        ({"metrics": {"dashboard": True}}, "/metrics/dashboard"),
        ({"networks": [{"name": "rail0", "config": {}}]}, "plugins"),
        ({"networks": [{"name": "rail0", "conf": {}}]}, "conf"),
        ({"networks": [{"name": "Rail_0", "config": RAIL}]}, "/networks/0/name"),
        ({"networks": [{"name": "rail0", "namespace": "a.b", "config": RAIL}]}, "/networks/0/namespace"),
        ({"networks": [{"name": "rail0", "config": {"plugins": []}}]}, "/networks/0/config/plugins"),
        ({"networks": [{"name": "rail0", "config": {"plugins": [{"tpye": "hpn"}]}}]}, "type"),
        ({"networks": [{"name": "rail0", "config": {"plugins": [{"type": "hpn", "guid": 638265253311}]}}]}, "guid"),
        ({"networks": [{"name": "rail0", "config": RAIL | {"cniversion": "1.1.0"}}]}, "cniversion"),
        (
            {"networks": [{"name": "a", "config": {"plugins": [RAIL["plugins"][0] | {"rails": "rail0"}]}}]},
            "/plugins/0/rails",
        ),
        ({"image": {"digest": "0123"}}, "/image/digest"),
        ({"imagePullSecrets": [{"name": "s", "namespace": "n"}]}, "namespace"),
        ({"label": {"values": {"rdma": {"network": []}}}}, "network"),
        ({"clusterAddresses": {"gc": True}}, "/clusterAddresses/gc"),
        ({"mode": "host"}, "/mode"),
        ({"cniBinDir": "opt"}, "/cniBinDir"),
        ({"cdiDir": "/etc/cdi"}, "/cdiDir"),
        ({"seLinuxOptions": {"typ": "spc_t"}}, "typ"),
        ({"devices": {"resources": []}}, "/devices"),
        ({"pools": [{"name": "a"}]}, "nodeSelector"),
        ({"pools": [{"name": "a", "nodeSelector": {}}]}, "/pools/0/nodeSelector"),
        ({"pools": [{"name": "A", "nodeSelector": {"p": "a"}}]}, "/pools/0/name"),
        ({"pools": [{"name": "a", "nodeSelector": {"p": "a"}, "device": ""}]}, "device"),
        ({"pools": [A | {"maxUnavailable": 0}]}, "/pools/0/maxUnavailable"),
        ({"maxUnavailable": "foo"}, "/maxUnavailable"),
        ({"maxUnavailable": "101%"}, "/maxUnavailable"),
        ({"tolerations": [{"kee": "gpu"}]}, "kee"),
        ({"affinity": {"nodeaffinity": {}}}, "nodeaffinity"),
        ({"tolerations": [{"key": "gpu", "effect": "Noexecute"}]}, "/tolerations/0/effect"),
        ({"resources": {"limit": {"cpu": 1}}}, "limit"),
        ({"resources": {"limits": {"cpu": {}}}}, "/resources/limits/cpu"),
    ],
    ids=str,
)
def test_what_is_refused(chart: Chart, values: dict[str, Any], key: str) -> None:
    done = chart.run(**values)
    assert done.returncode == 1
    assert re.search(rf"'{key}'|at '[^']*{key}'", done.stderr)


def test_every_port_is_taken() -> None:
    pattern = re.compile(SCHEMA["properties"]["metrics"]["properties"]["address"]["pattern"])
    assert [at for at in range(100000) if pattern.search(f"127.0.0.1:{at}")] == list(range(1, 65536))


@pytest.mark.parametrize(
    ("pools", "reason"),
    [
        ([A, {"name": "a", "nodeSelector": {"p": "b"}}], "pools: two are called a; rename one of them"),
        (
            [{"name": "b", "nodeSelector": {"p": "a"}}, A],
            "pools: a selects only nodes of b, which is before it; change a nodeSelector",
        ),
    ],
    ids=["one name", "no node is left"],
)
def test_pools_that_are_refused(chart: Chart, pools: list[dict[str, Any]], reason: str) -> None:
    done = chart.run(pools=pools)
    assert (done.returncode, done.stderr.count(f": {reason}\n")) == (1, 1)


def test_who_asks_before_a_removal(chart: Chart) -> None:
    """Where the DaemonSet's pods may have to end claims, a pod on the node's network, as they are."""
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    hook = "Pod hpn-uninstall"
    assert hook not in chart.objects()
    assert hook not in chart.objects(claims={"enabled": True}, mode="systemd")
    found = chart.objects("--namespace=other", claims={"enabled": True}, env=env)
    (container,) = found[hook]["spec"]["containers"]
    assert container["env"] == [{"name": name, "value": value} for name, value in env.items()]
    assert found[hook]["metadata"]["namespace"] == "other"
    (subject,) = found["ClusterRoleBinding hpn-uninstall"]["subjects"]
    assert subject == {
        "kind": "ServiceAccount",
        "name": found[hook]["spec"]["serviceAccountName"],
        "namespace": "other",
    }


def leaves(part: dict[str, Any], name: str = "") -> Iterator[str]:
    """The schema's values with their names."""
    part = part | SCHEMA["definitions"].get(part.get("$ref", "").rpartition("/")[2], {})
    if name in CHANGED or "properties" not in part:
        yield name
    else:
        for key, value in part["properties"].items():
            yield from leaves(value, f"{name}.{key}".lstrip("."))


def test_the_page_has_all_values() -> None:
    rows = PAGE.partition("\n### Values\n")[2].partition("\n#")[0].splitlines()
    named = [name for row in rows if row.startswith("| `") for name in re.findall("`([^`]+)`", row.split("|")[1])]
    assert sorted(named) == sorted({*leaves(SCHEMA)} - {"global"})


def test_the_page_has_the_values_that_restart_no_pod(chart: Chart) -> None:
    """The pods of a DaemonSet are replaced if its template changes."""
    (named,) = re.findall(r"restart no pod:\s(.*?)\.\s", PAGE, re.DOTALL)
    free = tuple(re.findall("`([^`]+)`", named))
    assert CHANGED.keys() == {*leaves(SCHEMA)} - {"global"}
    before = objects(chart, OTHERS)
    without_effect = list[str]()
    for name, value in CHANGED.items():
        after = objects(chart, changed(OTHERS, name, value))
        assert after != before, name
        if templates(after) == templates(before):
            without_effect.append(name)
    assert without_effect == [name for name in CHANGED if f"{name}.".startswith(tuple(f"{one}." for one in free))]


def changed(base: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The base with the value."""
    values: dict[str, Any] = json.loads(json.dumps(base))
    *path, last = name.split(".")
    reduce(lambda part, key: part.setdefault(key, {}), path, values)[last] = value
    return values


def objects(chart: Chart, values: dict[str, Any]) -> list[dict[str, Any]]:
    done = chart.run(**values)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def templates(made: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"]["template"] for one in made if one["kind"] == "DaemonSet"}


def test_the_page_has_the_rights_that_values_add(chart: Chart) -> None:
    base = {"devices": "rdmaNamespaces: exclusive"}
    before = rights(objects(chart, base))
    # No token, and no role.
    assert before.keys() == {"`install`", "`node`", "`agent`"}
    assert TOKEN not in {one for each in before.values() for one in each}
    switched = {name: True for name in CHANGED if name.endswith(".enabled") and "podMonitor" not in name}
    adding = ("networks", "metrics.address", "provision", "pools", "clusterAddresses.token", "scc")
    found = {}
    for name, value in ({name: CHANGED[name] for name in adding} | switched).items():
        for who, each in rights(objects(chart, changed(base, name, value))).items():
            if more := [one for one in each if one not in before.get(who, ())]:
                found[f"`{name}`", who] = ("; " if "ccount" in who else ", ").join(more)
    table = PAGE.partition("| value | who | gets | reason |\n")[2].partition("\n\n")[0].splitlines()[1:]
    rows = [line.strip("| ").split(" | ") for line in table]
    assert {(value, who): gets for values, who, gets, _ in rows for value in values.split(", ")} == found


def rights(made: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What each container gets of its node, and what each account or group may do in the API server."""
    found = dict[str, list[str]]()
    made = [each for one in made for each in one.get("items", [one])]
    rules = {(one["kind"], one["metadata"]["name"]): one["rules"] for one in made if one["kind"].endswith("Role")}
    for one in made:
        for pod in pods(one):
            for container in (*pod.get("initContainers", ()), *pod["containers"]):
                found[f"`{container['name']}`"] = [*of_container(pod, container)]
        if one["kind"].endswith("RoleBinding"):
            who = ", ".join(f"{subject['kind']} `{subject['name']}`" for subject in one["subjects"])
            where = f" in `{one['metadata']['namespace']}`" if one["kind"] == "RoleBinding" else ""
            kind, name = one["roleRef"]["kind"], one["roleRef"]["name"]
            # A role of the distribution has rules that the chart does not know.
            of_role = (
                [of_rule(rule, where) for rule in rules[kind, name]] if (kind, name) in rules else [f"{kind} `{name}`"]
            )
            found.setdefault(who, []).extend(of_role)
    return found


def pods(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The specification of the object's pods."""
    if one["kind"] == "Pod":
        yield one["spec"]
    elif one["kind"] in ("DaemonSet", "CronJob"):
        template = one["spec"].get("jobTemplate", one)["spec"]["template"]
        yield template["spec"]


def of_container(pod: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    security, volumes = container["securityContext"], {volume["name"]: volume for volume in pod.get("volumes", ())}
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"]["drop"] == ["ALL"]
    token = pod.get("automountServiceAccountToken", True)
    for mount in sorted(container.get("volumeMounts", ()), key=lambda it: it["mountPath"]):
        volume = volumes[mount["name"]]
        if "hostPath" in volume:
            yield f"{'read-only ' if mount.get('readOnly') else ''}`{volume['hostPath']['path']}`"
        token = token or any(
            "serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ())
        )
    if token:
        yield TOKEN
    yield from security["capabilities"].get("add", ())
    if security.get("appArmorProfile"):
        yield "no AppArmor profile"


def of_rule(rule: dict[str, Any], where: str) -> str:
    ((resource,), only) = rule["resources"], "".join(f" `{name}`" for name in rule.get("resourceNames", ()))
    return f"`{resource}`{only}{where}: {', '.join(rule['verbs'])}"
