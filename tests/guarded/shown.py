"""Guards of the commands that show the node's devices, and of what all commands for people have in common."""

from guarded.form import of

GUARDS = [
    *of("ctl/command_line.py", "unit/test_chosen.py", ("misspelt", 'if f"{directory}" != default:', "if False:")),
    *of(
        "ctl/gids.py",
        "unit/test_gids_command.py",
        ("a-terminal-obeys", "printable(gid.netdev)", "gid.netdev"),
        ("a-terminal-obeys-the-device", "printable(gid.device)", "gid.device"),
        ("not-set-yet", "return gid.gid != _UNSET", "return True"),
    ),
    *of(
        "ctl/hardware/rdma.py",
        "unit/test_gids_command.py",
        ("free-places", ' and gid.strip("0:"):', ":"),
    ),
    *of(
        "ctl/hardware/functions.py",
        "unit/test_devices.py",
        ("journal-unread", "            self.unread.append(why)\n", ""),
    ),
    *of(
        "ctl/hardware/gpus.py",
        "unit/test_gpus.py",
        ("a-bmc", 'if code.startswith(_VGA) and sysfs.line(f"{path}/vendor") not in _MAKERS:', "if False:"),
    ),
]
