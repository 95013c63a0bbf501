"""A message for people names the pod, with the part of a container's id that `crictl ps` shows."""

import json
from typing import Any

import pytest
from support.topology import Host, Pod

CONTAINER = "3fa9c1d2e4b5" + "0123456789abcdef" * 3 + "0123"
NAMED = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=train-0"
OF_POD = "hpn0 of default/train-0, container 3fa9c1d2e4b5, network rail0"
OF_CONTAINER = "hpn0 of container 3fa9c1d2e4b5, network rail0"


@pytest.mark.parametrize(("cni_args", "whose"), [(NAMED, OF_POD), ("", OF_CONTAINER)], ids=["a pod", "a container"])
def test_messages(host: Host, pod: Pod, cni_args: str, whose: str) -> None:
    environ = {"CNI_CONTAINERID": CONTAINER, "CNI_ARGS": cni_args}

    def said(command: str, conf: dict[str, Any], code: int) -> str:
        error = host.refused(command, pod, conf, **environ)
        assert error["code"] == code
        assert CONTAINER not in json.dumps(error)
        return str(error["msg"])

    assert f"{whose}: not attached" in said("CHECK", host.conf(prevResult={}), 107)
    conf = host.conf(sysctl={"net.core.somaxconn": "4000"})
    result = host.ok("ADD", pod, conf, **environ)
    assert f"{whose}: already attached" in said("ADD", conf, 100)
    other = host.conf(name="other", sysctl={"net.core.somaxconn": "5000"})
    error = host.refused("ADD", pod, other, **(environ | {"CNI_IFNAME": "hpn1"}))
    assert f"conflicts with {whose}, which set '4000'" in error["msg"]
    pod.remade()
    assert f"{whose}: attached to another namespace" in said("CHECK", conf | {"prevResult": result}, 107)
    reply = host.call("ADD", pod, conf, **environ)
    assert f"undid an earlier ADD of {whose};" in reply.log[0]
    reply = host.call("GC", None, conf | {"cni.dev/valid-attachments": []})
    assert f"gc: removed {whose}" in reply.log[0]
    assert CONTAINER not in "".join(reply.log)
