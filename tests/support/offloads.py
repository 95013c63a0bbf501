"""An interface's offloads by pyroute2, as ``ethtool -k`` shows them."""

from contextlib import closing
from functools import partial

from pyroute2.ethtool.ioctl import IoctlEthtool
from support.topology import Pod

from base.kernel import netns


def offloads(name: str) -> dict[str, bool]:
    """The offloads in the thread's namespace; without those that have no name."""
    with closing(IoctlEthtool(name)) as tool:
        return {offload: is_on for offload, is_on, *_ in tool.get_features() if offload}


def switch(name: str, *some: str) -> None:
    """Switch these off or on, whichever they are not, and see that it happened."""
    before = offloads(name)
    with closing(IoctlEthtool(name)) as tool:
        features = tool.get_features()
        for offload in some:
            features[offload] = not before[offload]
        tool.set_features(features)
    assert {offload for offload, is_on in offloads(name).items() if is_on != before[offload]} >= {*some}


def switch_in(pod: Pod, name: str, *some: str) -> None:
    """``switch`` in a pod."""
    with netns.hold_open(pod.path) as fd:
        netns.run_in(fd, partial(switch, name, *some))
