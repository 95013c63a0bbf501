"""packaging/helm: which values the chart refuses."""

import json
import re
from typing import Any

import pytest
from support.helm import CHART, Chart

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
A = {"name": "a", "nodeSelector": {"p": "a", "q": "x"}}
RAIL = {"plugins": [{"type": "hpn", "master": "rail0"}]}


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
