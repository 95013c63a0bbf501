"""A lease changed in a file with the same time and size as in the index: the change is detected."""

import json
import os
from pathlib import Path

from support.ipam_calls import Net

from ipam.stores.files.codec import to_line


def test_continuations_in_a_circle(tmp_path: Path) -> None:
    net = Net(tmp_path, {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]})
    net.add("b")
    a = net.add("a", args=f"K8S_POD_NAMESPACE={'n' * 250};K8S_POD_NAME={'p' * 60}")
    stat = net.file.stat()
    (*_, last) = (i for i, line in enumerate(net.lines()) if line.startswith(b'{"of"'))
    body = json.loads(net.lines()[last])
    del body["crc"]
    net.overwrite(last, to_line(body | {"next": last}))
    os.utime(net.file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert net.call("CHECK", "a")["code"] == 107
    assert net.held() >= set(a)
    assert net.call("DEL", "a")["code"] == 108
    assert net.held().isdisjoint(a)
    assert net.agrees()
