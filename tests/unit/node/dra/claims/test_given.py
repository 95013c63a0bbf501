"""What a claim's containers get besides their interfaces: device nodes as they are now, variables, and no wait."""

import json
from pathlib import Path

from support.dra_process import VF, DriverProcess
from support.node_dra import DraKubelet
from support.tls_server import Server, Told
from support.topology import until
from unit.node.dra.claims.test_driver import ASKED, UID, cdi, driver, folders, kubelet, server
from unit.node.dra.claims.test_prepare import claim, result

from base.state import claims

__all__ = ["driver", "folders", "kubelet", "server"]  # fixtures


def test_a_device_that_gets_another_number(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    """As when it moves to a pod, or its RDMA driver is loaded again: the claim's container gets the present nodes."""
    server.tell(Told(200, claim()))
    driver.has({"vf2": {**VF, "nodes": ["/dev/infiniband/uverbs4"]}})
    assert not kubelet.prepare(ASKED)[UID].error

    def nodes() -> list[str]:
        return [one["path"] for one in cdi(driver)["devices"][0]["containerEdits"]["deviceNodes"]]

    assert nodes() == ["/dev/infiniband/uverbs4"]
    driver.has({"vf2": {**VF, "nodes": ["/dev/infiniband/uverbs1"]}})
    until(lambda: nodes() == ["/dev/infiniband/uverbs1"])
    kept = claims.load(UID)
    assert kept
    assert kept.devices[0].nodes == ("/dev/infiniband/uverbs1",)
    driver.has({"vf2": VF})  # the driver is away for a moment
    driver.has({"vf2": {**VF, "nodes": ["/dev/infiniband/uverbs2"]}})
    until(lambda: nodes() == ["/dev/infiniband/uverbs2"])


def test_extended_resources(driver: DriverProcess, kubelet: DraKubelet, server: Server) -> None:
    """Containers start without an interface, as with the device plugin, and have its variables: those of one container,
    which has one request, name all of its devices."""
    document = claim(results=(result(), result("vf3"), result("fpga", "container-1")))
    document["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    server.tell(Told(200, document))
    ids = {"vf2": "0000:3b:00.2", "vf3": "0000:3b:00.3", "fpga": "0000:5e:00.0"}
    found = {
        name: {**VF, "id": one, "info": {one: {"generic": {"deviceID": one}, "extra": {"rail": "0"}}}}
        for name, one in ids.items()
    }
    driver.has({**found, "fpga": {**found["fpga"], "kind": "accelerator"}})
    assert not kubelet.prepare(ASKED)[UID].error
    assert [Path(claims.gate(UID, number)).exists() for number in (0, 2)] == [True, True]
    given = [dict(line.split("=", 1) for line in one["containerEdits"]["env"]) for one in cdi(driver)["devices"]]
    assert given[0] == given[1]
    assert given[0]["PCIDEVICE_EXAMPLE_COM_RAIL0"] == f"{ids['vf2']},{ids['vf3']}"
    assert json.loads(given[0]["PCIDEVICE_EXAMPLE_COM_RAIL0_INFO"])[ids["vf3"]]["extra"] == {"rail": "0"}
    assert given[2]["PCIDEVICE_EXAMPLE_COM_RAIL0"] == ids["fpga"]
