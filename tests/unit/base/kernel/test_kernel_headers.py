"""Our numbers and structures match the kernel's headers, for this machine's architecture.

The witness is the C compiler.
"""

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from struct import Struct
from types import ModuleType

import pytest

from agent import server
from base.kernel import (
    addresses,
    bpf,
    confinement,
    dcb,
    devlink,
    dump,
    events,
    frames,
    links,
    neighbors,
    netlink,
    netns,
    nsid,
    offloads,
    private_flags,
    probe,
    rdma_netlink,
    routes,
    rtnl,
    rules,
    syscalls,
    unix_sockets,
    vf,
)
from cni.kinds import child, ipoib, macvlan
from node.health import watch
from node.lldp import lldpdu
from node.provision import scan

# The C library's headers first: the kernel's omit what these define.
HEADERS = """
arpa/inet.h net/if_arp.h netinet/in.h netpacket/packet.h sys/inotify.h sys/prctl.h sys/socket.h sys/syscall.h
sys/timerfd.h sys/timex.h asm/socket.h rdma/rdma_netlink.h linux/bpf.h linux/dcbnl.h linux/devlink.h
linux/ethtool.h linux/fib_rules.h linux/genetlink.h linux/icmpv6.h linux/if.h linux/if_bridge.h linux/if_ether.h
linux/if_link.h linux/if_tun.h linux/mount.h linux/neighbour.h linux/audit.h linux/filter.h linux/net_namespace.h
linux/netlink.h linux/nexthop.h linux/nsfs.h linux/rtnetlink.h linux/capability.h linux/seccomp.h errno.h
linux/sched.h linux/sockios.h linux/version.h
"""
MODULES: tuple[ModuleType, ...] = (
    *(addresses, neighbors, dcb, events, links, macvlan, netlink, netns, nsid, rules, child, routes, ipoib, rtnl, vf),
)
# Names in our modules that are also C's.
OF_C = re.compile(
    r"_*((?:ARPHRD|CLONE|DCB|ETH_P|FRA|FR|IFA|IFF|IFLA|IN|NDA|NETLINK|NETNSA|NHA|NLA_F|NLM|NS|RTAX|RTA|RTEXT|RTM|RTN|RTPROT|RT"
    r"|SOL|SO)_\w+|(?:NLMSG|SIOC|TUN)\w+)"
)
# Names that differ in C.
NAMES = {
    "IPPROTO_ICMPV6": neighbors.ICMPV6,
    "__NR_bpf": bpf._NUMBER,
    "BPF_PROG_DETACH": bpf._PROG_DETACH,
    "BPF_PROG_GET_FD_BY_ID": bpf._PROG_GET_FD_BY_ID,
    "BPF_OBJ_GET_INFO_BY_FD": bpf._OBJ_GET_INFO_BY_FD,
    "BPF_PROG_QUERY": bpf._PROG_QUERY,
    "BPF_LINK_GET_FD_BY_ID": bpf._LINK_GET_FD_BY_ID,
    "BPF_LINK_GET_NEXT_ID": bpf._LINK_GET_NEXT_ID,
    "BPF_LINK_DETACH": bpf._LINK_DETACH,
    "BPF_LINK_TYPE_XDP": bpf._LINK_TYPE_XDP,
    "BPF_TCX_INGRESS": bpf.TCX[0],
    "BPF_TCX_EGRESS": bpf.TCX[1],
    "STA_UNSYNC": syscalls._STA_UNSYNC,
    "DEVLINK_CMD_ESWITCH_GET": devlink.ESWITCH_GET,
    "DEVLINK_CMD_HEALTH_REPORTER_GET": devlink.HEALTH_REPORTER_GET,
    "DEVLINK_ATTR_ESWITCH_MODE": devlink._ESWITCH_MODE,
    "DEVLINK_ATTR_HEALTH_REPORTER": devlink._REPORTER,
    "DEVLINK_ATTR_HEALTH_REPORTER_NAME": devlink._REPORTER_NAME,
    "DEVLINK_ATTR_HEALTH_REPORTER_STATE": devlink._REPORTER_STATE,
    "CTRL_CMD_GETFAMILY": devlink._GETFAMILY,
    "CTRL_ATTR_MCAST_GROUPS": devlink._MCAST_GROUPS,
    "FIB_RULE_INVERT": dump.FIB_RULE_INVERT,
    "__NR_fsopen": syscalls._FSOPEN,
    "__NR_fsconfig": syscalls._FSCONFIG,
    "__NR_fsmount": syscalls._FSMOUNT,
    "FSOPEN_CLOEXEC": syscalls._CLOEXEC,
    "FSCONFIG_CMD_CREATE": syscalls._CMD_CREATE,
    "MOUNT_ATTR_RDONLY": syscalls._READ_ONLY,
    "(MOUNT_ATTR_NOSUID|MOUNT_ATTR_NODEV|MOUNT_ATTR_NOEXEC)": syscalls._HARMLESS,
    "IFLA_MAX_MTU": scan._IFLA_MAX_MTU,
    "(NLA_TYPE_MASK & 0xFFFF)": netlink.NLA_TYPE_MASK,
    "PACKET_ADD_MEMBERSHIP": probe._PACKET_ADD_MEMBERSHIP,
    "PACKET_MR_MULTICAST": probe._PACKET_MR_MULTICAST,
    "SOL_PACKET": probe._SOL_PACKET,
    "PR_SET_PDEATHSIG": syscalls._PR_SET_PDEATHSIG,
    "RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)": rdma_netlink.GET,
    "RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SET)": rdma_netlink.SET,
    "RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_SET)": rdma_netlink.SYS_SET,
    "RDMA_NLDEV_ATTR_RES_PID": rdma_netlink.RES_PID,
    "RDMA_NLDEV_ATTR_RES_KERN_NAME": rdma_netlink.RES_KERN_NAME,
    **{
        f"RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_{name.upper()}_GET)": kind
        for name, (kind, _, _) in rdma_netlink.RESOURCES.items()
    },
    **{f"RDMA_NLDEV_ATTR_RES_{name.upper()}": table for name, (_, table, _) in rdma_netlink.RESOURCES.items()},
    **{f"RDMA_NLDEV_ATTR_RES_{name.upper()}_ENTRY": entry for name, (_, _, entry) in rdma_netlink.RESOURCES.items()},
    "SIOCETHTOOL": offloads._SIOCETHTOOL,
    "ETHTOOL_GFEATURES": offloads._GFEATURES,
    "ETHTOOL_SFEATURES": offloads._SFEATURES,
    "ETH_P_LLDP": lldpdu.ETHERTYPE,
    "SO_ATTACH_FILTER": frames._SO_ATTACH_FILTER,
    "(BPF_LD|BPF_W|BPF_ABS)": frames._LOAD_WORD,
    "(BPF_LD|BPF_H|BPF_ABS)": frames._LOAD_HALF,
    "(BPF_LD|BPF_W|BPF_LEN)": frames._LOAD_LENGTH,
    "(BPF_JMP|BPF_JEQ|BPF_K)": frames._IF_EQUAL,
    "(BPF_JMP|BPF_JGT|BPF_K)": frames._IF_GREATER,
    "(BPF_RET|BPF_K)": frames._RETURN,
    "ETHTOOL_GSTRINGS": private_flags._STRINGS,
    "ETHTOOL_GSSET_INFO": private_flags._SET_INFO,
    "ETHTOOL_GPFLAGS": private_flags._FLAGS,
    "ETH_SS_PRIV_FLAGS": private_flags._PRIVATE,
    "ETH_GSTRING_LEN": private_flags._NAME,
    "PR_SET_NO_NEW_PRIVS": confinement._SET_NO_NEW_PRIVS,
    "PR_SET_SECCOMP": confinement._SET_SECCOMP,
    "SECCOMP_MODE_FILTER": confinement._MODE_FILTER,
    "SECCOMP_RET_ALLOW": confinement._ALLOW,
    "(SECCOMP_RET_ERRNO|EPERM)": confinement._REFUSE,
    "_LINUX_CAPABILITY_VERSION_3": confinement._CAPABILITY_VERSION,
    "RDMA_NLDEV_NET_NS_FD": rdma_netlink.NET_NS_FD,
    "SO_RCVBUFFORCE": watch._SO_RCVBUFFORCE,
}
STRUCTS = {
    "struct rtmsg": addresses.ROUTE,
    "struct ifaddrmsg": addresses.ADDRESS,
    "struct nhmsg": routes._NEXTHOP,
    "struct nexthop_grp": routes._MEMBER,
    "struct dcbmsg": dcb._MESSAGE,
    "struct dcb_app": dcb._APP,
    "struct genlmsghdr": devlink._GENL,
    "struct inotify_event": events._EVENT,
    "struct ifinfomsg": links.LINK,
    "struct ethtool_gfeatures": offloads._HEAD,
    "struct ethtool_get_features_block": offloads._GET,
    "struct ethtool_set_features_block": offloads._SET,
    "struct ifreq": links._BY_INDEX,
    "struct nlmsghdr": netlink.HEADER,
    "struct nlattr": netlink.ATTR,
    "struct fib_rule_hdr": rules.RULE,
    "struct itimerspec": server._ITIMERSPEC,
    "struct ucred": unix_sockets.UCRED,
    "struct rtnexthop": routes.HOP,
    "struct ifla_vf_guid": Struct("=I4xQ"),
    "struct packet_mreq": frames._MREQ,
    "struct sock_filter": frames._INSTRUCTION,
    "struct sock_fprog": frames._PROGRAM,
    "struct ethtool_value": private_flags._VALUE,
    "struct ethtool_gstrings": private_flags._NAMES,
}
OFFSETS = {
    ("struct ifreq", "ifr_ifindex"): 16,
    ("struct ifreq", "ifr_data"): 16,
    ("struct ethtool_sset_info", "sset_mask"): 8,
    ("struct ethtool_sset_info", "data"): 16,
    ("struct ethtool_get_features_block", "requested"): 4,
    ("struct ethtool_set_features_block", "requested"): 4,
    ("struct ifreq", "ifr_hwaddr.sa_data"): 18,
    ("struct ifla_vf_guid", "guid"): 8,
    ("struct timex", "status"): syscalls._Timex.status.offset,
    ("union bpf_attr", "query.prog_ids"): 16,
    ("union bpf_attr", "query.prog_cnt"): 24,
    ("struct bpf_link_info", "xdp.ifindex"): 16,
}
# Constants of newer kernels, which Debian 12's headers lack.
SINCE = {"DCB_ATTR_DCB_APP_TRUST_TABLE": (6, 3), "BPF_TCX_INGRESS": (6, 6), "BPF_TCX_EGRESS": (6, 6)}


def stated() -> Iterator[tuple[str, int]]:
    """C's expressions, with our values for them."""
    for module in MODULES:
        for name, value in vars(module).items():
            if type(value) is int and (public := OF_C.fullmatch(name)):
                yield public[1], value
    yield from NAMES.items()
    if platform.machine() == "x86_64":
        yield from ((f"__NR_{name}", number) for name, (number, _) in confinement._CALLS.items())
    yield from ((f"sizeof({name})", struct.size) for name, struct in STRUCTS.items())
    yield from ((f"offsetof({name}, {member})", at) for (name, member), at in OFFSETS.items())


def program() -> str:
    lines = ["#define _GNU_SOURCE", "#include <stddef.h>", *(f"#include <{name}>" for name in HEADERS.split())]
    for what, value in sorted(set(stated())):
        line = f'_Static_assert((long long)({what}) == {value}LL, "{what} is not {value}");'
        if since := SINCE.get(what):
            line = f"#if LINUX_VERSION_CODE >= KERNEL_VERSION({since[0]}, {since[1]}, 0)\n{line}\n#endif"
        lines.append(line)
    return "\n".join(lines)


def test_they_are_the_headers() -> None:
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("no gcc, which has the kernel's headers")
    done = subprocess.run(
        [compiler, "-fsyntax-only", "-x", "c", "-"], input=program(), capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0), f"on {platform.machine()}"
    assert len(set(stated())) > 150
