"""Guards of cni/state: the log, and the last error of an attachment."""

# ruff: noqa: E501  # a text is easier to compare with the code in one piece
from guarded.form import of

GUARDS = (
    *of(
        "cni/state/log.py",
        "unit/test_log.py attack/test_hostile_configuration.py",
        (
            "allowed",
            'node.place("logFile", path, _allowed(request, lines))',
            'node.place("logFile", path, ["/"])',
        ),
        (
            "refused-before",
            "        if request.command not in _FORGIVING:\n            raise\n        lines.append(e.msg)\n    except OSError",
            "        lines.append(e.msg)\n    except OSError",
        ),
        ("forgiving", '_FORGIVING: Final = ("DEL", "GC")', "_FORGIVING: Final = ()"),
        ("short", "value[:_LONGEST] if isinstance(value, str) else value", "value"),
        ("trace", 'if parts and (parts[1] != "00" or not parts[2])', "if trace", "unit/test_log_lines.py"),
        ("a-bug", "        except Exception as e:", "        except OSError as e:", "unit/test_log_file.py"),
        ("closed", "            if log:\n                log.close()", "            pass", "unit/test_log_file.py"),
        ("quoted", "set(' \"=\\\\')", "set()", "unit/test_log_lines.py"),
    ),
    *of(
        "cni/state/log_file.py",
        "unit/test_log_file.py",
        ("bound", "if found.st_nlink and found.st_size < LIMIT:", "if found.st_nlink:"),
        ("removed", "if found.st_nlink and found.st_size < LIMIT:", "if found.st_size < LIMIT:"),
        ("older-name", "    if os.path.normpath(place.path).endswith(OLD):", "    if False:"),
        ("beside", "        if not self.place.names:", "        if False:"),
        ("not-in-silence", '"" if size < 2 * LIMIT else', '"" if size else'),
        (
            "goes-on",
            '        except OSError as e:\n            lines.append(f"logFile {self.place.path!r} cannot',
            '        except IndexError as e:\n            lines.append(f"logFile {self.place.path!r} cannot',
        ),
        ("alone", "LOCK_EX | fcntl.LOCK_NB", "LOCK_EX"),
        ("same", "        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):", "        if True:"),
    ),
    *of(
        "cni/state/last_error.py",
        "unit/test_last_error.py",
        ("trusted", "    trust.refuse_unless_ours(os.path.dirname(entry.error_file))\n", ""),
        ("short", "str(document[name])[:_LONGEST]", "str(document[name])"),
        ("attached", 'request.command != "ADD" or not _is_complete(entry)', "True"),
        ("no-delegate", " or request.var(DELEGATED):", ":"),
        ("abandoned", " or request.abandoned():", ":"),
        (
            "locked",
            "            with journal.lock(entry.state_dir, entry.network, entry.key, timeout=0):",
            "            if True:",
        ),
        ("members", "body if body and body.keys() >=", "body if body or body.keys() >="),
    ),
)
