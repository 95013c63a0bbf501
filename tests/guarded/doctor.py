"""Guards of hpn doctor."""

from guarded.form import of

GUARDS = [
    *of(
        "ctl/doctor/machine.py",
        "unit/test_doctor.py::test_of_a_pod_nothing_is_said",
        ("pods", "if number.isdecimal() and (theirs == host or not (theirs and host)):", "if number.isdecimal():"),
    ),
    *of(
        "ctl/doctor/reading.py",
        "unit/test_doctor.py::test_files_as_the_kernel_has_them",
        ("pieces", "_PIECE: Final = 1 << 16", "_PIECE: Final = 1 << 24"),
        (
            "unread",
            "        if error.errno in (errno.EACCES, errno.EPERM):",
            "        if False:",
            "unit/test_doctor.py::test_found_and_gone[not-readable]",
        ),
        (
            "another-kernel",
            'return boot != "" and boot == self.line(_BOOT)',
            "return True",
            "unit/test_doctor_priorities.py::test_whose_clock_it_is",
        ),
    ),
    *of(
        "cni/attachments.py",
        "unit/test_another_shape.py unit/test_doctor.py",
        ("members", "    except (AttributeError, KeyError, TypeError, ValueError):", "    except ZeroDivisionError:"),
        ("types", "        all(isinstance(one, str) for", "        all(True for"),
    ),
    *of(
        "ctl/doctor/programs.py",
        "unit/test_doctor.py::test_a_socket_of_systemds_is_left_alone",
        ("systemd", "listens = path in listening or _accepts(there)", "listens = _accepts(there)"),
        ("listens", "int(fields[3], 16) & _LISTENS", "True"),
    ),
]
