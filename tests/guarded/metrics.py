"""Guards of hpn node's metrics, and of what commands tell it."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/protocol/report.py",
        "unit/test_metrics_commands.py",
        ("nobody-waits", " | SOCK_NONBLOCK)", ")"),
        ("nobody-there", "    with suppress(OSError):  # the pod", "    with suppress(BlockingIOError):  # the pod"),
    ),
    *of(
        "node/metrics/address.py",
        "unit/test_metrics_address.py",
        ("loopback", "    if not at.is_loopback:\n", "    if False:\n"),
    ),
    *of(
        "node/metrics/commands.py",
        "unit/test_metrics_commands.py",
        ("a-line-of-ours", "_LINE.fullmatch(line)", "_LINE.match(line)"),
        ("not-without-end", " and len(self.ended) >= _MOST", " and False"),
        ("of-root", "        trust.refuse_unless_ours(str(path.parent))\n", ""),
    ),
    *of(
        "node/metrics/http.py",
        "unit/test_metrics_http.py",
        ("bytes-of-a-request", "max_incomplete_event_size=REQUEST_MOST", "max_incomplete_event_size=1 << 30"),
        ("connections", "        if len(self._peers) < CONNECTIONS_MOST:\n", "        if True:\n"),
        ("time", "self._server.loop.after(TIMEOUT, self.end)", "self._server.loop.after(1000, self.end)"),
        ("so-often", "        if self._heard >= HEARD_MOST:\n", "        if False:\n"),
        ("one-at-a-time", "bool(self._http.trailing_data[0])", "False"),
    ),
    *of(
        "node/metrics/collection.py",
        "unit/test_metrics_http.py",
        ("a-tenth-of-a-processor", "time.monotonic() < self._until", "False"),
    ),
    *of(
        "node/metrics/ports.py",
        "unit/test_metrics_rdma.py",
        ("of-this-boot", "record.of_this_boot and ", ""),
        ("for-itself", ' and (record.rxe or record.link.get("device"))', ""),
    ),
]
