"""Guards of the way to the stores that nodes share: connections, whom they believe, and an API server's answers."""

from guarded.form import of

GUARDS = [
    *of(
        "ipam/cluster/http.py",
        "unit/test_cluster_http.py",
        ("not-twice", "is_over = answer.status != _BUSY and not is_safe", "is_over = False"),
        ("not-twice-unanswered", "why, is_over = str(e), not is_safe", "why, is_over = str(e), False"),
        (
            *("no-plain-connection", "        connection.auto_open = 0\n", "", "unit/test_cluster_http.py"),
            "_connected gives no connection that has no socket",
        ),
        ("time-for-all", "left(deadline) / (len(found) - place + 1)", "left(deadline)", "unit/test_cluster_names.py"),
        ("ended-by-the-server", " or _has_ended(self._connection))", ")"),
        ("budget", "min(_PATIENCE, budget.left())", "_PATIENCE"),
        ("pause-in-the-budget", " or pause >= budget.left():", ":"),
        (
            *("why-it-hung-up", "        connection.sock.recv(1)\n", "", "unit/test_cluster_http.py"),
            "only if the server has hung up before all was sent, which is chance",
        ),
    ),
    *of(
        "ipam/cluster/tls.py",
        "unit/test_cluster_http.py",
        (
            "authority",
            "    made.minimum_version =",
            "    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE\n    _ =",
        ),
        ("host", "    made.minimum_version =", "    made.check_hostname = False\n    _ ="),
    ),
    *of(
        "ipam/cluster/credentials.py",
        "unit/test_cluster_credentials.py",
        ("not-anybody", '    "insecure-skip-tls-verify": (\n', '    "insecure": (\n'),
        ("no-program", '    "exec": f"', '    "execute": f"'),
        ("https", 'is_url(cluster.get("server"), "https")', 'is_url(cluster.get("server"), "http", "https")'),
        ("as-text", "Loader=yaml.BaseLoader", "Loader=yaml.UnsafeLoader"),
    ),
    *of(
        "ipam/cluster/kubernetes.py",
        "unit/test_cluster_kubernetes.py",
        ("our-own", "return there if there and there.body == body else None", "return there"),
        ("as-it-was-read", ', "resourceVersion": document.version}\n        answer', "}\n        answer"),
        ("removed-as-read", ', "preconditions": preconditions}', "}"),
        ("no-field-lost", "&fieldValidation=Strict", ""),
        (
            "labels-are-short",
            "if all(one.body.get(key) == value for key, value in asked.items())",
            "if True",
            "unit/test_kubernetes_lists.py",
        ),
        (
            "as-it-is-now",
            "self._pages(kind, selector) if node is None else self._now(kind, selector)",
            "self._pages(kind, selector)",
            "unit/test_kubernetes_lists.py",
        ),
        ("blocks-of-this-node", ' if one.body.get("node") == name]', "]", "unit/test_kubernetes_leases.py"),
        (
            "back-to-kubelet",
            "        if objects.is_of_blocks(there) and",
            "        if False and",
            "unit/test_kubernetes_leases.py",
        ),
        ("node-object-is-back", "safe='')}\").status == 200:", "safe='')}\"):", "unit/test_kubernetes_leases.py"),
        ("of-no-memory", "        if self._revision >= known:", "        if True:", "unit/test_kubernetes_lists.py"),
        (
            "no-more-than-was-listed",
            "return min(known, self._read(",
            "return max(0, self._read(",
            "unit/test_kubernetes_lists.py",
        ),
        ("renewed", "        if answer.status == 401:  #", "        if False:  #"),
        ("another-file", "        if not self._kubeconfig.is_current():\n", "        if False:\n"),
    ),
    *of(
        "ipam/cluster/objects.py",
        "unit/test_cluster_kubernetes.py",
        ("no-kind-is-not-free", 'found.get("reason") == "NotFound" and', "answer.status == 404 or"),
        ("store's-clock", "    if not times and isinstance(spec, dict)", "    if isinstance(spec, dict)"),
        ("no-page-again", " or (after and after == before):", ":", "unit/test_strange_answers.py"),
    ),
    *of(
        "ipam/cluster/addresses.py",
        "unit/test_cluster_names.py",
        ("deadline", "while waiting.poll(1000 * left(deadline)):", "while waiting.poll():"),
        (
            *(
                "killed",
                "            os.kill(pid, signal.SIGKILL)\n",
                "            pass\n",
                "unit/test_cluster_names.py",
            ),
            "its own alarm ends it, a second later",
        ),
    ),
    *of(
        "ipam/cluster/answers.py",
        "unit/test_cluster_http.py",
        ("whole-answer", "        if response.length:\n", "        if False:\n"),
    ),
    *of(
        "ipam/cluster/kv.py",
        "unit/test_strange_answers.py",
        ("succeeded", 'not isinstance(answer["succeeded"], bool)', "False"),
        ("revision", '    _number(header, "revision")\n', ""),
        ("pairs", '            _number(pair, "mod_revision")\n', ""),
    ),
    *of(
        "ipam/cluster/etcd.py",
        "unit/test_etcd.py",
        ("only-if-absent", "self._transaction([kv.absent(key)], made,", "self._transaction([], made,"),
        ("as-it-was-read", "[kv.unchanged(key, document.version)], made,", "[], made,"),
        ("removed-as-read", "[kv.unchanged(key, document.version)], gone,", "[], gone,"),
        ("our-own", " if answer.again and there and there.value == value else None", " if there else None"),
        ("never-told", "        if alive or (documents and not told):\n", "        if alive:\n"),
        ("says-who-told", ", told=bool(alive))", ")"),
        (
            "every-request",
            "        if len(kv.parts(answer.body)) != len(asked):\n",
            "        if False:\n",
            "unit/test_strange_answers.py",
        ),
        (
            "no-key-again",
            "            if pairs[-1].key <= last:",
            "            if False:",
            "unit/test_strange_answers.py",
        ),
    ),
]
