"""Kill the plugin at boundaries of attaching, detaching and collecting a VF with all features."""

import pytest
from guest.gid_tables import PATIENT
from guest.node import MAC, Node, picture
from guest.recovery import recovered
from support.topology import Pod

CHANGES = {"vlan": 7, "spoofchk": "off", "trust": "on", "max_tx_rate": 50, "mac": MAC, "mtu": 1400, "multiRail": True}
RDMA = PATIENT | {"mode": "exclusive", "required": True, "name": "mlx5_0"}


@pytest.mark.usefixtures("node_file")
@pytest.mark.parametrize("command", ["ADD", "DEL", "GC"])
def test_killed_at_every_boundary(node: Node, pod: Pod, command: str) -> None:
    info = node.tmp_path / "info"
    conf = node.conf(**CHANGES, rdma=RDMA, runtimeConfig={"CNIDeviceInfoFile": str(info)})
    before = picture()
    for where in recovered(node, pod, command, conf):
        assert list(node.tmp_path.glob("info*")) == [], f"device information left {where}"
        assert picture() == before, f"not as it was {where}"
