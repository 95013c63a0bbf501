"""The requests from present slices to wanted ones, and the pool's generation, by which the scheduler sees a whole."""

import copy
from typing import Any

from node.dra.slices import names
from node.dra.slices.changes import Changes, changes

POOL = "node1/pci-0000-3b-00-0"
Json = dict[str, Any]


def part(*devices: str, taint: str = "") -> Json:
    taints = {"taints": [{"key": "k", "value": taint, "effect": "NoSchedule"}]} if taint else {}
    return {"devices": [{"name": name, "attributes": {}, **taints} for name in devices]}


def stored(*parts: Json, generation: int = 1, pool: str = POOL) -> list[Json]:
    """Slices as the API server has them."""
    made = changes("node1", "n-1", pool, [], copy.deepcopy([*parts])).created
    for number, one in enumerate(made):
        one["metadata"] |= {"uid": f"u-{number}", "resourceVersion": "7"}
        one["spec"]["pool"]["generation"] = generation
        for device in one["spec"].get("devices", ()):
            for taint in device.get("taints", ()):
                taint["timeAdded"] = "2026-11-23T06:00:00Z"
    return made


def generations(found: list[Json]) -> set[int]:
    return {one["spec"]["pool"]["generation"] for one in found}


def test_create() -> None:
    made = changes("node1", "n-1", POOL, [], [part("a"), part("b")])
    assert (made.removed, made.replaced) == ([], [])
    first, second = made.created
    assert first["metadata"] == {
        "name": names.slice_name("node1", POOL, 0),
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "n-1", "controller": True}],
    }
    about = {"name": POOL, "generation": 1, "resourceSliceCount": 2}
    assert first["spec"] == {"driver": "hpn-cni.io", "nodeName": "node1", "pool": about, **part("a")}
    assert second["spec"]["devices"] == part("b")["devices"]
    assert "ownerReferences" not in changes("node1", "", POOL, [], [part("a")]).created[0]["metadata"]


def test_nothing_to_do() -> None:
    """The API server adds the time of a taint."""
    parts = [part("a", taint="gone"), part("b")]
    assert changes("node1", "n-1", POOL, stored(*parts, generation=5), parts) == Changes([], [], [])


def test_one_changed_slice_keeps_the_generation() -> None:
    there = stored(part("a"), part("b"), generation=5)
    made = changes("node1", "n-1", POOL, there, [part("a"), part("b", taint="gone")])
    (one,) = made.replaced
    assert not made.removed
    assert not made.created
    assert one["metadata"]["name"] == there[1]["metadata"]["name"]
    assert one["metadata"]["resourceVersion"] == "7"
    assert one["metadata"]["uid"] == "u-1"
    assert generations(made.replaced) == {5}


def test_several_changed_slices_get_a_new_generation() -> None:
    there = stored(part("a"), part("b"), part("c"), generation=5)
    made = changes("node1", "n-1", POOL, there, [part("a", taint="x"), part("b", taint="x"), part("c")])
    assert len(made.replaced) == 3
    assert generations(made.replaced) == {6}


def test_a_new_slice_changes_all() -> None:
    made = changes("node1", "n-1", POOL, stored(part("a")), [part("a"), part("b")])
    assert generations(made.replaced) == generations(made.created) == {2}
    assert [one["spec"]["pool"]["resourceSliceCount"] for one in (*made.replaced, *made.created)] == [2, 2]


def test_a_pool_of_which_kubelet_removed_a_slice() -> None:
    """The rest of the pool is of no use, and the removed slice cannot return with the old generation's number only."""
    there = stored(part("a"), part("b"), generation=5)[1:]
    made = changes("node1", "n-1", POOL, there, [part("a"), part("b")])
    assert (len(made.created), len(made.replaced)) == (1, 1)
    assert generations([*made.created, *made.replaced]) == {6}


def test_generations_that_differ() -> None:
    """A round that was killed in the middle leaves them."""
    there = stored(part("a"), part("b"), generation=5)
    there[0]["spec"]["pool"]["generation"] = 6
    made = changes("node1", "n-1", POOL, there, [part("a"), part("b")])
    assert [one["spec"]["pool"]["generation"] for one in made.replaced] == [6]


def test_remove() -> None:
    there = stored(part("a"), part("b"))
    made = changes("node1", "n-1", POOL, there, [part("a")])
    assert made.removed == there[1:]
    (one,) = made.replaced
    assert one["spec"]["pool"] == {"name": POOL, "generation": 1, "resourceSliceCount": 1}
    assert changes("node1", "n-1", POOL, there, []) == Changes(there, [], [])


def test_a_slice_of_another_name() -> None:
    """An older version's, or of a program that uses the same driver's name."""
    there = stored(part("a"))
    there[0]["metadata"]["name"] = "other"
    made = changes("node1", "n-1", POOL, there, [part("a")])
    assert made.removed == there
    assert generations(made.created) == {2}


def test_a_taint_keeps_its_time() -> None:
    """Without its time, the API server would restart a toleration's seconds."""
    there = stored(part("a", "b", taint="gone"))
    wanted = part("a", taint="gone")
    wanted["devices"] += [*part("b", taint="no-link")["devices"], *part("c")["devices"]]
    (one,) = changes("node1", "n-1", POOL, there, [copy.deepcopy(wanted)]).replaced
    first, second, third = one["spec"]["devices"]
    assert first["taints"][0]["timeAdded"] == "2026-11-23T06:00:00Z"
    assert "timeAdded" not in second["taints"][0]
    assert "taints" not in third


def test_strange_slices() -> None:
    """Nothing that the API server refuses; it is removed or replaced."""
    (there,) = stored(part("a"))
    for spec in ({}, {"pool": 5}, {"pool": {"name": POOL, "generation": "x"}, "devices": None}):
        made = changes("node1", "n-1", POOL, [{**there, "spec": spec}], [part("a")])
        assert len(made.created) + len(made.replaced) == 1
