"""packaging/helm: which values the chart refuses."""

import re
from typing import Any

import pytest
from support.helm import Chart

A = {"name": "a", "nodeSelector": {"p": "a", "q": "x"}}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"nodeselector": {}}, "nodeselector"),
        ({"metrics": {"adress": "127.0.0.1:9617"}}, "adress"),
        ({"metrics": {"address": "0.0.0.0:9617"}}, "/metrics/address"),
        ({"metrics": {"podMonitor": {"enabled": True}}}, "/metrics/address"),
        ({"metrics": {"podMonitor": {"enabled": True}, "address": "unix:/run/hpn/metrics.sock"}}, "/metrics/address"),
        ({"metrics": {"dashboard": True}}, "/metrics/dashboard"),
        ({"networks": [{"name": "rail0", "config": {}}]}, "plugins"),
        ({"networks": [{"name": "rail0", "conf": {}}]}, "conf"),
        ({"image": {"digest": "0123"}}, "/image/digest"),
        ({"label": {"values": {"rdma": {"network": []}}}}, "network"),
        ({"clusterAddresses": {"gc": True}}, "/clusterAddresses/gc"),
        ({"way": "host"}, "/way"),
        ({"cniBinDir": "opt"}, "/cniBinDir"),
        ({"devices": {"resources": []}}, "/devices"),
        ({"pools": [{"name": "a"}]}, "nodeSelector"),
        ({"pools": [{"name": "a", "nodeSelector": {}}]}, "/pools/0/nodeSelector"),
        ({"pools": [{"name": "A", "nodeSelector": {"p": "a"}}]}, "/pools/0/name"),
        ({"pools": [{"name": "a", "nodeSelector": {"p": "a"}, "device": ""}]}, "device"),
    ],
    ids=str,
)
def test_what_is_refused(chart: Chart, values: dict[str, Any], key: str) -> None:
    done = chart.run(**values)
    assert done.returncode == 1
    assert re.search(rf"'{key}'|at '[^']*{key}'", done.stderr)


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
