"""Guards of what speaks to kubelet."""

from guarded.form import of

GUARDS = [
    *of(
        "node/grpc/guard.py",
        "unit/test_node_grpc_pure.py",
        ("a-long-frame", "        if length > FRAME_MOST:\n", "        if False:\n"),
        ("many-frames", "        if self._count > FRAMES_MOST:\n", "        if False:\n"),
        ("long-headers", "        if self._block > HEADERS_MOST:\n", "        if False:\n"),
        ("long-data-is-free", " or length < _LONG", ""),
    ),
    *of(
        "node/grpc/messages.py",
        "unit/test_node_grpc_pure.py",
        ("length", "        if length > self._most:\n", "        if False:\n"),
        ("compressed", "        if flag:\n", "        if False:\n"),
        ("one-message", "        if len(self._data) > _PREFIX.size + length:\n", "        if False:\n"),
    ),
    *of(
        "node/grpc/connection.py",
        "unit/test_node_grpc_hostile.py",
        (
            "unread-answers",
            "        if len(self._unsent) > _UNSENT_MOST:\n",
            "        if False:\n",
            "unit/test_node_grpc_connection.py",
        ),
        ("not-too-far-ahead", "room = _AHEAD - len(self._unsent)", "room = 1 << 40"),
        (
            "the-newest-only",
            "            box.following = data\n",
            "            box.following = (box.following or b'') + data\n",
            "unit/test_node_grpc_connection.py",
        ),
        ("stalled", "        if left <= 0:\n", "        if False:\n", "unit/test_node_grpc_connection.py"),
    ),
    *of(
        "node/grpc/server.py",
        "unit/test_node_grpc_hostile.py",
        ("uid", "not trust.is_trusted(uid_of(sock)) or ", "", "attack/test_hostile_kubelet.py"),
        ("connections", "        if len(self._peers) < CONNECTIONS_MOST:\n", "        if True:\n"),
        ("requests-in-time", "        if waited >= REQUEST_TIMEOUT or", "        if"),
        ("first-request-in-time", " or not (self._has_asked or self._requests):", ":"),
        ("all-requests", " > 2 * self.request_most():", " > 1 << 40:"),
    ),
    *of(
        "node/listener.py",
        "unit/test_node_grpc_hostile.py",
        (
            "pause",
            "        self._loop.unwatch(self._sock.fileno())\n        self._pause",
            "        self._pause",
        ),
    ),
    *of(
        "node/grpc/client.py",
        "attack/test_hostile_kubelet.py",
        ("uid", "    if not trust.is_trusted(uid):\n", "    if False:\n"),
    ),
    *of(
        "node/kubelet/sockets.py",
        "unit/test_node_plugin.py",
        ("weak", "    if weak := trust.weak_spot(str(folder)):\n", "    if weak := None:\n"),
        ("its-own", "        if inode(path) == made:\n", "        if True:\n"),
    ),
    *of(
        "node/kubelet/plugin.py",
        "unit/test_node_plugin.py",
        ("not-while-one-listens", "if self._server and not self._watchers:", "if self._server:"),
        ("not-if-one-comes", "        self._keep_socket()\n        self._watchers.add", "        self._watchers.add"),
        ("once", "        if self._said != sentence:\n", "        if True:\n"),
    ),
]
