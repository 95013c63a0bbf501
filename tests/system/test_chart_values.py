"""packaging/helm: which values the chart refuses, and which of them replace pods."""

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
RAIL = {"plugins": [{"type": "hpn", "master": "rail0"}]}
PAGE = (ROOT / "docs" / "user" / "kubernetes.md").read_text()
# With all that has no part in the pods, so that each change below has an effect.
OTHERS = {
    "metrics": {"address": "127.0.0.1:9617", "podMonitor": {"enabled": True}, "dashboard": {"enabled": True}},
    "label": {"enabled": True},
    "clusterAddresses": {"gc": {"enabled": True}},
}
CHANGED = {
    "image.repository": "localhost/hpn", "image.tag": "2", "image.digest": f"sha256:{'0' * 64}",
    "image.pullPolicy": "Always", "imagePullSecrets": [{"name": "s"}], "devices": "resources: []", "way": "pod",
    "provision": True, "pools": [A], "networks": [{"name": "rail0", "config": RAIL}],
    "metrics.address": "127.0.0.1:9618", "metrics.podMonitor.enabled": False, "metrics.podMonitor.labels": {"a": "b"},
    "metrics.dashboard.enabled": False, "metrics.dashboard.labels": {"a": "b"}, "label.enabled": False,
    "label.name": "a.b/c", "label.values": {"fast": {}}, "clusterAddresses.enabled": True,
    "clusterAddresses.token": True, "clusterAddresses.gc.enabled": False,
    "clusterAddresses.gc.schedule": "0 * * * *", "claims.enabled": True, "cniBinDir": "/plugins",
    "kubeletDir": "/kubelet", "env": {"A": "1"}, "nodeSelector": {"a": "b"}, "tolerations": [],
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
        ({"networks": [{"name": "rail0", "config": RAIL | {"cniversion": "1.1.0"}}]}, "cniversion"),
        ({"image": {"digest": "0123"}}, "/image/digest"),
        ({"imagePullSecrets": [{"name": "s", "namespace": "n"}]}, "namespace"),
        ({"label": {"values": {"rdma": {"network": []}}}}, "network"),
        ({"clusterAddresses": {"gc": True}}, "/clusterAddresses/gc"),
        ({"way": "host"}, "/way"),
        ({"cniBinDir": "opt"}, "/cniBinDir"),
        ({"devices": {"resources": []}}, "/devices"),
        ({"pools": [{"name": "a"}]}, "nodeSelector"),
        ({"pools": [{"name": "a", "nodeSelector": {}}]}, "/pools/0/nodeSelector"),
        ({"pools": [{"name": "A", "nodeSelector": {"p": "a"}}]}, "/pools/0/name"),
        ({"pools": [{"name": "a", "nodeSelector": {"p": "a"}, "device": ""}]}, "device"),
        ({"pools": [A | {"maxUnavailable": 0}]}, "/pools/0/maxUnavailable"),
        ({"maxUnavailable": "foo"}, "/maxUnavailable"),
        ({"maxUnavailable": "101%"}, "/maxUnavailable"),
        ({"tolerations": [{"kee": "gpu"}]}, "kee"),
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
        after = objects(chart, changed(name, value))
        assert after != before, name
        if templates(after) == templates(before):
            without_effect.append(name)
    assert without_effect == [name for name in CHANGED if f"{name}.".startswith(tuple(f"{one}." for one in free))]


def changed(name: str, value: Any) -> dict[str, Any]:
    """OTHERS with the value."""
    values = json.loads(json.dumps(OTHERS))
    *path, last = name.split(".")
    reduce(lambda part, key: part.setdefault(key, {}), path, values)[last] = value
    return values


def objects(chart: Chart, values: dict[str, Any]) -> list[dict[str, Any]]:
    done = chart.run(**values)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def templates(made: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"]["template"] for one in made if one["kind"] == "DaemonSet"}
