"""Guards of a device on its way to a pod and home."""

from guarded.form import of

GUARDS = [
    *of(
        "cni/kinds/sriov/attributes.py",
        "unit/test_attributes.py",
        (
            "a-driver-that-fails",
            "            if e.errno != errno.EOPNOTSUPP:\n                raise",
            "            pass",
        ),
        ("no-mac-only", 'if (name, value) != ("mac", _NO_MAC) or ', "if "),
    ),
    *of(
        "cni/kinds/device.py",
        "netns/test_host_device.py",
        (
            "no-name-of-the-pods",
            "for name in (was.name, instead_of(was.name)) if",
            "for name in (was.name,) if",
            "netns/test_host_device_attacked.py",
        ),
        ("name-taken-at-home", "            if e.errno != errno.EEXIST:\n                raise", "            raise"),
        (
            "index-taken-at-home",
            "        if not p.software or e.errno != errno.EBUSY:\n            raise",
            "        raise",
            "netns/test_host_device.py::test_its_index_is_taken_on_the_host_meanwhile",
        ),
        (
            "xdp",
            "            host.set_link(link.index, without_xdp(mode))",
            "            pass",
            "netns/test_programs.py::test_they_stay_behind",
        ),
        (
            "xdp-by-link",
            " or not bpf.detach_xdp_link(link.index, program):",
            ":",
            "netns/test_programs.py::test_they_stay_behind",
        ),
        (
            "tcx",
            "            bpf.detach_from_tcx(link.index, program, where, holder)",
            "            pass",
            "netns/test_programs.py::test_they_stay_behind",
        ),
        (
            "the-hosts-programs",
            "        if program in was.programs:",
            "        if False:",
            "netns/test_programs.py::test_the_hosts_own_come_back",
        ),
        (
            "altname-in-the-pod",
            "        if pod.rtnl.link(altname):",
            "        if False:",
            "netns/test_host_device.py::test_an_altname_that_the_pod_has",
        ),
    ),
]
