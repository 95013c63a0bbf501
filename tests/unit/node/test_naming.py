"""The names of resources that kubelet accepts, and why it refuses others."""

import pytest

from node.config.values import why_refused

LONGEST = "a" * 60 + "." + "b" * 61 + "." + "c" * 61 + "." + "d" * 59


@pytest.mark.parametrize(
    "name",
    [
        "rdma/hca_shared_devices_b",
        "rdma/hca",
        "intel.com/sriov-net.A_1",
        "nvidia.com/0",
        "a-b.c9/Rail-0",
        f"{LONGEST}/x",
        "x/" + "n" * 63,
    ],
)
def test_taken(name: str) -> None:
    assert why_refused(name) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hca", "one '/'"),
        ("", "one '/'"),
        ("a/b/c", "one '/'"),
        ("/x", "no prefix"),
        ("example_prefix/x", "DNS name"),
        ("Intel.com/x", "DNS name"),
        ("intel..com/x", "DNS name"),
        ("intel.com./x", "DNS name"),
        ("-a/x", "DNS name"),
        ("a-/x", "DNS name"),
        ("intel.com\n/x", "DNS name"),
        ("é/x", "DNS name"),
        ("kubernetes.io/x", "Kubernetes' own"),
        ("sub.kubernetes.io/x", "Kubernetes' own"),
        ("requests.intel.com/x", "a quota's"),
        (f"{LONGEST}z/x", "245 characters"),
        ("rdma/", "first and last"),
        ("rdma/_x", "first and last"),
        ("rdma/x-", "first and last"),
        ("rdma/x y", "first and last"),
        ("rdma/x\n", "first and last"),
        ("rdma/\ud800", "first and last"),
        ("x/" + "n" * 64, "64 characters"),
    ],
)
def test_refused(name: str, why: str) -> None:
    assert why in why_refused(name)


def test_the_longest_prefix_is_what_a_quota_leaves() -> None:
    assert len(LONGEST) == 244
