"""Guards of the node's own program."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/kernel/uevents.py",
        "netns/test_node_watch.py",
        (
            "a-port-of-its-own",
            "if port == 0 and senders == [0]",
            "if senders == [0]",
            "netns/test_node_watch.py",
            "only a sender in a PID namespace that is not seen from here has process 0",
        ),
        ("the-kernels-process", "if port == 0 and senders == [0]", "if port == 0"),
    ),
    *of(
        "node/watch.py",
        "netns/test_node_watch.py",
        ("from-the-kernel", "            if port == 0:\n", "            if True:\n"),
        ("what-was-lost", "                has_lost = True\n", ""),
    ),
    *of(
        "node/directory.py",
        "unit/test_node_directory.py",
        ("one-process", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH"),
        ("the-lock-that-is-there", " and _is_at(self._lock, self.path / _LOCK)", ""),
        ("not-the-end-of-a-watch", "not mask & inotify.IN_IGNORED and ", ""),
    ),
    *of(
        "node/inventory.py",
        "unit/test_node_inventory.py",
        ("another-incarnation", "known[0] != incarnation or ", ""),
        ("complete", " or look.may_differ(address, known[1])", ""),
        ("not-a-port", 'if "brport" in inside or (', "if ("),
        (
            "default-route",
            'reserved=next((why for name in netdevs if (why := self._reserved.get(name))), "")',
            'reserved=""',
            "netns/test_node_uplinks.py",
        ),
    ),
    *of(
        "node/reserved.py",
        "netns/test_node_uplinks.py",
        ("below-it", "for name in (uplink, *all_below(root, uplink))", "for name in (uplink,)"),
        ("a-port", "dict.fromkeys(all_below(root, OVS),", "dict.fromkeys((),"),
    ),
    *of(
        "cni/kernel/uplinks.py",
        "netns/test_node_uplinks.py",
        ("everybodys-table", "        own |= tables_of_all(host, family)\n", "        pass\n"),
        ("ipv4-first", "first.get(place) or second[place]", "first.get(place, set()) | second.get(place, set())"),
    ),
    *of(
        "cni/kernel/rules.py",
        "netns/test_node_uplinks.py",
        ("a-condition", " or flags & _INVERT or conditions)", ")"),
    ),
    *of(
        "node/remembered.py",
        "unit/test_node_inventory.py",
        ("of-that-incarnation", "seen = last if before == life else seen", "seen = last"),
        ("of-that-driver", 'f"{incarnation} {driver}"', 'f"{incarnation}"'),
        ("of-this-boot", 'if body.get("boot") == durable.boot_id():', "if True:"),
    ),
    *of(
        "node/offers.py",
        "unit/test_node_offers.py",
        ("reserved", "    free = [(device, by) for device, by in found if not device.reserved]", "    free = found"),
        ("with-vfs", " if not device.vfs or device.id in asked], said", "], said"),
        ("no-vf", "if device.kind not in (Kind.VF, Kind.SF) or not pf:", "if not pf:"),
        ("whose", "if _is_free(resource, owners.get(device.id))]", "]"),
    ),
    *of(
        "node/answers.py",
        "unit/test_node_answers.py unit/test_node_answers_files.py",
        ("gone", "        _refuse_gone(resource, device, root)\n", "        pass\n"),
        ("missing", "        _refuse_missing(resource, node, root)\n", "        pass\n"),
    ),
    *of(
        "node/cdi.py",
        "unit/test_node_answers.py unit/test_node_answers_files.py",
        ("our-name", "if one.startswith(_START) and one.endswith(_END)]", "]"),
        ("our-kind", """ if f'"kind": "{KIND}"' in _read(f"{folder}/{one}")}""", "}"),
        ("unchanged", '        if _read(f"{folder}/{file}") != text:', "        if True:"),
    ),
    *of(
        "node/device_info.py",
        "unit/test_node_answers.py unit/test_node_answers_files.py",
        ("an-id", " and _ID.fullmatch(name[len(start) : -len(_END)])", ""),
        ("one-device", '    if len(unit.devices) != 1:\n        return ""\n', ""),
    ),
    *of(
        "node/preferred.py",
        "unit/test_node_preferred.py",
        ("available", " or not free.issuperset(taken)", ""),
        ("size", "    if not len(taken) <= size <= len(free) or", "    if"),
    ),
    *of(
        "node/config/__init__.py",
        "unit/test_node_config_document.py",
        ("one-dialect", "    if len(found) > 1:", "    if False:"),
        ("ours-once", "            if parsed.twice:", "            if False:"),
    ),
    *of(
        "node/config/document.py",
        "unit/test_node_config_document.py",
        ("aliases", "        if self.check_event(yaml.AliasEvent):", "        if False:"),
        ("yaml-once", "        if key.value in found:", "        if False:"),
        ("depth", "    if level:\n", "    if False:\n"),
        ("no-nan", "parse_constant=constant", "parse_constant=float"),
    ),
    *of(
        "node/config/peers.py",
        "unit/test_node_config_peers.py unit/test_node_config_own.py",
        ("kubelet", "        if why := why_refused(resource.full_name):", '        if why := "":'),
        (
            "twins",
            "        if (name := resource.full_name) in first:",
            "        if (name := resource.full_name) in {}:",
        ),
    ),
    *of(
        "node/config/sriov.py",
        "unit/test_node_config_peers.py",
        ("no-pkey", "            yield NO_PKEY\n", ""),
        ("of-other-profiles", "isinstance(one, NetDevice) and one.ddpProfiles:", "False:"),
    ),
    *of(
        "node/config/shared.py",
        "unit/test_node_config_peers.py",
        ("not-everything", "    if not listed and not entry.devices:", "    if False:"),
    ),
    *of(
        "node/config/own.py",
        "unit/test_node_config_own.py",
        ("not-everything", '    if entry.kind in ("pf", "master") and given == Selectors():', "    if False:"),
        ("named", '    if entry.selectors is None and entry.kind in ("pf", "master"):', "    if False:"),
    ),
    *of(
        "node/health.py",
        "unit/test_node_health.py",
        (
            "what-a-pod-has",
            "names = (device.pf_netdev,) if device.kind in (Kind.VF, Kind.SF) else device.netdevs",
            "names = (*device.netdevs, device.pf_netdev)",
        ),
        ("set-down-says-nothing", "up = [link for link in links if link.up]", "up = list(links)"),
        ("patience", "    if now < turned + wait:\n", "    if False:\n"),
    ),
    *of(
        "node/roster.py",
        "unit/test_node_roster.py",
        ("gone-and-listed", "    if not now:\n        return True\n", "    if not now:\n        return False\n"),
        ("another-has-it", "device.id not in claimed and ", ""),
    ),
    *of(
        "node/daemon.py",
        "netns/test_node.py",
        (
            "nothing-written-beside-another",
            "            self._directory.claim()\n        self._watch",
            "            pass\n        self._watch",
        ),
        ("the-one-of-before", "        except (Refused, OSError) as e:\n", "        except FileExistsError as e:\n"),
    ),
]
