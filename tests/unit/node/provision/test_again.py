"""When a number of VFs is tried again that a driver refused."""

from typing import Any

import pytest
from support import pci
from support.sysfs_tree import Tree

from base.kernel import sysfs
from node.log import Topics
from node.provision import apply, provisioning


class Timers:
    """A loop's clock: the pauses that are asked for, and the ones that were cancelled."""

    def __init__(self) -> None:
        self.asked = list[tuple[float, str]]()
        self.cancelled = list[str]()

    def call_later(self, seconds: float, _work: object, address: str) -> Any:
        timers = self

        class Handle:
            def cancel(self) -> None:
                timers.cancelled.append(address)

        self.asked.append((seconds, address))
        return Handle()


def test_each_pf_has_its_own_pace() -> None:
    """One that is refused again and again delays no other, and one that was taken begins anew."""
    timers = Timers()
    node = provisioning.Provisioning(timers, Topics(), lambda: None)  # type: ignore[arg-type]
    node._plan_again({"a", "b"}, {"a"})
    node._plan_again({"a"}, {"a"})
    node._plan_again({"b"}, {"b"})
    assert timers.asked == [(60, "a"), (120, "a"), (60, "b")]
    assert timers.cancelled == ["a"]
    node._plan_again({"a"}, set())
    node._plan_again({"a"}, {"a"})
    assert timers.asked[3:] == [(60, "a")]


def test_an_rdma_device_without_its_ports(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows it before they are there."""
    tree = Tree(tmp_path / "sys")
    pci.is_sys(tree.root, monkeypatch)
    monkeypatch.setattr(sysfs, "SYS", tree.root)
    vf = tree.pci(pci.VF, driver="mlx5_core")
    tree.netdev("vf0", vf)
    assert not apply._is_complete(pci.VF, with_rdma=True)
    tree.rdma("mlx5_1", vf, 1)
    assert apply._is_complete(pci.VF, with_rdma=True)
    ports = vf / "infiniband/mlx5_1/ports"
    ports.rename(tmp_path / "ports")
    assert not apply._is_complete(pci.VF, with_rdma=True)
