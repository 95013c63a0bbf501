"""Guards of what goes to a pod, and what the host needs."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/kinds/sriov/choose.py",
        "netns/test_pci.py",
        (
            "a-vf",
            "        if not function.pf:\n            raise InvalidConfig",
            "        if False:\n            raise InvalidConfig",
        ),
        ("a-driver", "        if not function.driver:\n            raise", "        if False:\n            raise"),
        (
            "vf-owned",
            "    if owner := use.devices.get(address):",
            "    if owner := None:",
        ),
        ("pf-owned", "    if owner := owned.owner(state_dirs, pf):", "    if owner := None:"),
        (
            "vf-needed",
            '    needed.refuse_function(function, use, host, said=f"{what}: ")\n',
            "",
            "netns/test_needed.py",
        ),
        (
            "any-needed",
            "            needed.refuse_function(function, use, host)\n",
            "            pass\n",
            "netns/test_needed.py",
        ),
        (
            "vf-there",
            "    if (number := wanted.vf or 0) >= len(addresses):",
            "    if (number := wanted.vf or 0) and False:",
        ),
        ("any-owned", "        if address in use.devices:\n", "        if False:\n"),
        ("any-up", "        if link is None or link.up:", "        if link is None:"),
        ("whole-a-vf", "    if function.pf:\n        raise", "    if False:\n        raise"),
    ),
    *of(
        "cni/kinds/wires.py",
        "netns/test_wires.py",
        (
            "its-own",
            "    if own is not None and nsid",
            "    if False and nsid",
            "netns/test_host_device_attacked.py::test_both_ends_of_a_pair_in_one_pod",
        ),
        ("its-namespace", "return nsid.number(host, fd) == link.parent_nsid", "return False"),
        ("its-name", "leads_to(sandbox) if sandbox else name == link.name:", "leads_to(sandbox):"),
        ("our-attachments", "found for one in state_dirs for", "found for one in () for"),
    ),
    *of(
        "cni/kinds/master.py",
        "netns/test_wires.py",
        ("a-pods-wire", "    if wires.is_pair(link):\n", "    if False:\n"),
    ),
    *of(
        "cni/kinds/needed.py",
        "netns/test_host_device.py::test_what_the_host_cannot_spare netns/test_pci.py netns/test_needed.py",
        ("enslaved", "    if link.enslaved:", "    if False:"),
        (
            "a-master",
            "    if record := use.has_over(link.index):",
            "    if record := None:",
            "netns/test_host_device.py::test_the_master_of_another_attachment",
        ),
        ("vf-owned", "        if owner := use.devices.get(vf):", "        if owner := None:"),
        ("vfs-needed", "        refuse_function(sysfs.function(vf), use, host, ", "        dict("),
        ("default-route", "        if name in uplinks.of_default_routes():", "        if False:"),
        ("addresses", "    if lost:", "    if False:"),
        ("routes", "    if shown := [", "    if shown := False and ["),
        ("carries", "    if uppers := _uppers(link, address, host):", "    if uppers := []:"),
    ),
    *of(
        "cni/kernel/in_use.py",
        "netns/test_needed.py::test_a_vf_that_is_up_and_nobody_needs",
        ("link-local", "if not address.ip.is_link_local and", "if"),
        ("a-routers", " and told.get(_IFA_PROTO) != _IFAPROT_KERNEL_RA:", ":"),
    ),
    *of(
        "cni/kernel/routes.py",
        "netns/test_needed.py::test_a_vf_that_is_up_and_nobody_needs",
        ("kernels", "        if network.is_link_local or (", "        if False and ("),
        ("a-routers", "self.length < 128 and self.protocol in (RTPROT_KERNEL, RTPROT_RA)", "False"),
    ),
    *of(
        "cni/kinds/host_device/choose.py",
        "netns/test_host_device.py::test_what_the_host_cannot_spare",
        ("lo", '    if name == "lo":', "    if False:"),
        ("altname", "    if link.name != name:", "    if False:"),
        ("a-pods-wire", "    if wires.is_pair(link):\n", "    if False:\n", "netns/test_wires.py"),
        (
            "one-of-a-mac",
            "    if len(names) > 1:",
            "    if False:",
            "netns/test_host_device.py::test_several_interfaces_of_one_mac",
        ),
    ),
]
