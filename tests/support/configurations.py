"""Load configurations for the tests of cni.config, and return its refusals."""

from typing import Any

import pytest

from base.protocol.errors import CniError
from cni import config

MAC = "02:00:00:00:00:01"


def conf(**keys: Any) -> dict[str, Any]:
    return {"cniVersion": "1.1.0", "name": "rail0", "type": "hpn", **keys}


def refused(document: dict[str, Any], cni_args: str = "") -> CniError:
    with pytest.raises(CniError) as e:
        config.load(document, cni_args)
    return e.value


VF = {"deviceID": "0000:3b:00.2"}
